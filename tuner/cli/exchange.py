"""Commands that exchange runs with other machines: `tuner export` and `tuner import`."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.options import (
    FAILED,
    FINDING,
    database_option,
    existing,
    filter_options,
    print_json,
    selected,
    tidy_end,
)
from tuner.cli.output import Column, amount_progress, print_table
from tuner.formatting import counted, printable
from tuner.paths import cache_path

if TYPE_CHECKING:
    from tuner.exchange.export import Format, What
    from tuner.exchange.importing import Imported

SUFFIXES: dict[str, Format] = {
    "": "csv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
    ".db": "sqlite",
    ".sqlite": "sqlite",
}


TOLD = 20
"""Rejected rows whose reasons are printed."""


@click.command()
@click.option(
    "--what",
    type=click.Choice(["samples", "runs", "verdicts"]),
    default="samples",
    show_default=True,
    help="What a row is; only samples can be imported.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "jsonl", "parquet", "sqlite"]),
    show_default="by FILE's suffix, csv without one",
    help="The format of FILE; imports read jsonl and sqlite.",
)
@click.option(
    "-o", "--output", metavar="FILE|-", default="-", help="The file to write; - is stdout."
)
@click.option("--anonymous", is_flag=True, help="Leave out host and file names, and free texts.")
@filter_options
@database_option
def export(
    what: What,
    form: Format | None,
    output: str,
    anonymous: bool,
    database: str | None,
    **filters: Any,
) -> None:
    """Export samples, runs or verdicts to a file.

    FILE appears whole or not at all. docs/files.md lists its columns.

    \b
    Example:
      tuner export --decided -o tuning.parquet
    """
    from tuner.exchange.export import write_file, write_rows

    suffix = Path(output).suffix.lower()
    form = form or SUFFIXES.get(suffix)
    if form is None:
        known = ", ".join(filter(None, SUFFIXES))
        raise click.UsageError(f"unknown suffix {suffix}: use {known}, or give --format")
    if form == "sqlite" and what != "samples":
        raise click.UsageError(f"--format sqlite holds samples: leave out --what {what}")
    if output == "-" and sys.stdout is None:
        raise click.ClickException("stdout is closed: name a file with -o FILE")
    if output == "-" and (form == "sqlite" or (form == "parquet" and sys.stdout.isatty())):
        raise click.UsageError(f"{form} cannot be written to this stdout: name a file with -o FILE")
    selection = selected(**filters)
    file = existing(database)
    with tidy_end(), amount_progress("exporting") as progress:
        if output == "-":
            stdout = sys.stdout.buffer
            try:
                write_rows(
                    file,
                    stdout,
                    form,
                    what=what,
                    selection=selection,
                    anonymous=anonymous,
                    progress=progress,
                )
                stdout.flush()
            except BrokenPipeError:  # a reader such as `head` has seen enough
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                click.get_current_context().exit(FAILED)
            return
        written = write_file(
            file,
            Path(output),
            form,
            what=what,
            selection=selection,
            anonymous=anonymous,
            progress=progress,
        )
    size = Path(output).stat().st_size
    of = f" of {counted(written.runs, 'run')}" if written.runs else ""
    click.echo(f"{output}: {counted(written.rows, 'row')}{of} of {file}, {size:,} bytes")


@click.command("import")
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--strict", is_flag=True, help="Import nothing if anything is rejected.")
@click.option("--dry-run", is_flag=True, help="Show what would be imported; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result for each file as JSON.")
@database_option
@click.pass_context
def import_(
    ctx: click.Context,
    files: tuple[Path, ...],
    strict: bool,
    dry_run: bool,
    as_json: bool,
    database: str | None,
) -> None:
    """Import runs from other databases, JSON lines or JSON caches.

    Existing runs are kept, wrong rows are rejected, and the verdicts of keys with new runs are
    recomputed. Exits with 3 if anything was rejected.

    \b
    Example:
      tuner import node7.jsonl /mnt/node8/tuning.db
    """
    from tuner.exchange.importing import import_files

    with tidy_end(), amount_progress("importing") as progress:
        done, found = import_files(
            cache_path(database),
            files,
            strict=strict,
            dry_run=dry_run,
            progress=progress,
        )
    if as_json:
        print_json({"done": done, "files": [_as_json(file) for file in found]})
    elif readable := [file for file in found if not _is_unread(file)]:
        _print_files(readable)
    for file in found:
        _tell(file)
    if not done and not all(map(_is_unread, found)):
        why = "a dry run" if dry_run else "--strict, and not all of it is good"
        click.echo(f"nothing was imported: {why}", err=True)
    if all(map(_is_unread, found)):
        ctx.exit(FAILED)
    if any(file.error or file.rejected for file in found):
        ctx.exit(FINDING)


def _as_json(file: Imported) -> dict[str, Any]:
    rejections = [{"line": place, "reason": reason} for place, reason in file.rejections]
    return {**dataclasses.asdict(file), "rejections": rejections}


def _is_unread(file: Imported) -> bool:
    """Return whether nothing could be read from a file."""
    return file.error is not None and not (file.new_runs or file.known_runs or file.rejected)


def _print_files(found: list[Imported]) -> None:
    columns = ("file", "new runs", "samples", "keys", "known", "rejected")
    print_table(
        [
            Column(column, "left" if column == "file" else "right", yields=column == "file")
            for column in columns
        ],
        [
            (
                Path(file.file).name,
                f"{file.new_runs:,}",
                f"{file.new_samples:,}",
                f"{file.keys:,}",
                f"{file.known_runs:,}",
                f"{file.rejected:,}",
            )
            for file in found
        ],
    )


def _tell(file: Imported) -> None:
    """Report on stderr what was not imported."""
    for place, reason in file.rejections[:TOLD]:
        click.echo(printable(f"{file.file}:{place}: {' '.join(reason.split())}"), err=True)
    if file.rejected > TOLD:
        click.echo(f"{file.file}: {file.rejected - TOLD:,} more; --json lists some", err=True)
    if file.error:
        click.echo(f"tuner: {printable(' '.join(file.error.split()))}", err=True)
