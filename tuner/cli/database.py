"""`tuner db`: where the database is, its schema, and what to do when it is damaged."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from tuner.cli.filters import filter_options, selected
from tuner.cli.options import (
    FINDING,
    Failing,
    FiniteRange,
    database_option,
    existing,
    print_json,
    tidy_end,
)
from tuner.cli.progress import showing
from tuner.cli.tables import Column, counted, print_table
from tuner.environment import POLICIES, Environment
from tuner.paths import cache_path

VALIDATORS = Environment._fields


@click.group(cls=Failing)
def db() -> None:
    """Look after the database file."""


@db.command()
@database_option
def path(database: str | None) -> None:
    """Print where the database is, whether or not it is there yet.

    \b
    Example:
      sqlite3 -readonly "$(tuner db path)" 'select * from tuning_overview'
    """
    click.echo(cache_path(database))


@db.command()
@database_option
def upgrade(database: str | None) -> None:
    """Bring the database to this version's schema, making it if it is missing.

    \b
    Example:
      tuner db upgrade --database /data/tuning.db
    """
    from tuner.store.migrate import upgrade as upgrade_file

    file = cache_path(database)
    before, now = upgrade_file(file)
    if before == now:
        click.echo(f"{file} has schema {now} already")
    else:
        click.echo(f"{file}: schema {before or 'none'} -> {now}")


@db.command()
@database_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of findings.")
@click.pass_context
def check(ctx: click.Context, database: str | None, as_json: bool) -> None:
    """Look the database over, page by page and row by row. Changes nothing.

    Exits with 3 if something is wrong.

    \b
    Example:
      tuner db check
    """
    from tuner.store.maintenance import check as check_file

    file = existing(database)
    findings = check_file(file)
    if as_json:
        print_json([{"what": found.what, "next_step": found.next_step} for found in findings])
    for found in findings if not as_json else ():
        click.echo(f"{found.what}: {found.next_step}")
    if findings:
        ctx.exit(FINDING)
    if not as_json:
        click.echo(f"{file} is sound")


@db.command()
@database_option
def repair(database: str | None) -> None:
    """Move a damaged database aside and start a new one with what can still be read.

    The damaged file stays beside the new one; a sound one is left alone. Exits with 3 if nothing
    could be read.

    \b
    Example:
      tuner db repair
    """
    from tuner.store.maintenance import repair as repair_file

    file = existing(database)
    done = repair_file(file)
    if done is None:
        click.echo(f"{file} is sound: nothing was changed")
        return
    click.echo(f"moved the damaged file to {done.moved_to}")
    for table, rows in done.kept.items():
        refused = done.refused[table]
        more = f", {refused} refused" if refused else ""
        click.echo(f"{table}: {counted(rows, 'row')} kept{more}")
    if not any(done.kept.values()):
        click.echo("nothing of it could be read: a backup, or an export, can be imported")
        click.get_current_context().exit(FINDING)
    click.echo("`tuner db recompute` makes the verdicts anew from what was kept")


@db.command()
@click.argument("copy", metavar="FILE", type=click.Path(path_type=Path))
@database_option
def backup(copy: Path, database: str | None) -> None:
    """Write a consistent copy to FILE, while others go on writing. Overwrites nothing.

    \b
    Example:
      tuner db backup tuning-2026-01-31.db
    """
    from tuner.store.backup import back_up

    file = existing(database)
    with tidy_end():
        back_up(file, copy)
    click.echo(f"{copy}: a copy of {file}, {copy.stat().st_size:,} bytes")


@db.command()
@database_option
def vacuum(database: str | None) -> None:
    """Give the space of what was removed back to the disk.

    \b
    Example:
      tuner db vacuum
    """
    from tuner.store.maintenance import vacuum as vacuum_file

    file = existing(database)
    before, now = vacuum_file(file)
    click.echo(f"{file}: {before:,} -> {now:,} bytes")


@db.command()
@database_option
def recompute(database: str | None) -> None:
    """Make all verdicts anew from the samples.

    \b
    Example:
      tuner db recompute
    """
    from tuner.store.runs import recompute as recompute_file

    file = existing(database)
    count = recompute_file(file, showing("judging"))
    click.echo(f"{file}: the verdicts of {counted(count, 'key')} are made anew")


@db.command()
@click.option(
    "--older-than", type=FiniteRange(), metavar="DAYS", help="Runs that ended longer ago."
)
@click.option(
    "--keep-runs", type=click.IntRange(min=1), metavar="N", help="All but N newest runs of a key."
)
@click.option(
    "--max-size",
    type=FiniteRange(),
    metavar="MB",
    help="The oldest, until the file is about so small.",
)
@filter_options
@click.option("--yes", is_flag=True, help="Do it; without this nothing is changed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: what goes.")
@database_option
def prune(
    older_than: float | None,
    keep_runs: int | None,
    max_size: float | None,
    yes: bool,
    as_json: bool,
    database: str | None,
    **filters: Any,
) -> None:
    """Say which runs are old, many or large enough to go; remove them with --yes.

    Of all runs, or of those that the filters mean: all filters hold together. Verdicts are made
    anew from what is left. A key that loses all of its runs is forgotten,
    unless it is pinned.

    \b
    Example:
      tuner db prune --older-than 365 --keep-runs 20
      tuner db prune --keep-runs 5 --model 'quad*' --until 2026-01-31
    """
    from tuner.store.maintenance import plan_pruning
    from tuner.store.maintenance import prune as prune_file

    if older_than is None and keep_runs is None and max_size is None:
        raise click.UsageError("say what is to go: --older-than, --keep-runs or --max-size")
    file = existing(database)
    pruning = plan_pruning(
        file,
        older_than=None if older_than is None else _days(older_than),
        keep_runs=keep_runs,
        most_bytes=None if max_size is None else int(max_size * 1e6),
        selection=selected(**filters),
    )
    if yes and pruning.run_ids:
        prune_file(file, pruning)
    if as_json:
        print_json({"done": yes, **dataclasses.asdict(pruning)})
        return
    click.echo(
        f"{'removed' if yes else 'would remove'} {counted(len(pruning.run_ids), 'run')} with "
        f"{counted(pruning.samples, 'sample')} of {counted(len(pruning.keys), 'key')}; "
        f"{counted(len(pruning.gone), 'key')} {'' if yes else 'would be '}forgotten"
    )
    if not yes and pruning.run_ids:
        click.echo("nothing was changed: --yes does it")


def _days(number: float) -> timedelta:
    return timedelta(days=min(number, timedelta.max.days))


@db.command()
@click.argument("name", required=False, type=click.Choice(VALIDATORS))
@click.argument("policy", required=False, type=click.Choice(POLICIES))
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the policies.")
@database_option
def policy(name: str | None, policy: str | None, as_json: bool, database: str | None) -> None:
    """Show how strictly each validator counts, or set one and make the verdicts anew.

    A verdict answers where its software stack agrees: "exact" to the letter, "same minor" in
    the first two parts of the version, "ignore" whatever it is.

    \b
    Example:
      tuner db policy mujoco_version exact
    """
    from tuner.store.maintenance import read_policies, set_policy

    file = existing(database)
    if name and not policy:
        raise click.UsageError(f"say which policy {name} is to have: {', '.join(POLICIES)}")
    if name and policy:
        set_policy(file, name, policy)
    policies = read_policies(file)
    if as_json:
        print_json(policies)
        return
    print_table([Column("validator"), Column("policy")], sorted(policies.items()))


@db.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the figures.")
@database_option
def stats(as_json: bool, database: str | None) -> None:
    """Add up what is stored.

    \b
    Example:
      tuner db stats
    """
    from tuner.store.maintenance import read_stats

    found = read_stats(existing(database))
    if as_json:
        print_json(found)
        return
    for name, figure in stats_lines(found):
        click.echo(f"{name:<20} {figure}")


def stats_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Write the figures of `read_stats` for people: names and texts."""
    every = found
    return [(name.replace("_", " "), _figure(name, value)) for name, value in every.items()]


def _figure(name: str, value: Any) -> str:
    if value is None:
        return "none yet"
    if name.endswith("_rate"):
        return f"{100 * value:.1f} %"
    if name.endswith("_seconds"):
        return f"{value:.1f} s"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
