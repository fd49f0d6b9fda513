"""Runs read-only SQL statements on the database."""

from __future__ import annotations

import csv
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

import click

from tuner.cli.options import database_option, existing
from tuner.cli.output import Column, console, print_table
from tuner.formatting import printable

MOST_ROWS = 500_000
"""Rows are read whole before they are printed: while a pager waits, others may write."""


@click.command()
@click.argument("statement", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="Format of the rows; csv and json keep all digits of a number.",
)
@click.option("--json", "form", flag_value="json", help="The same as --format json.")
@database_option
def sql(statement: str | None, form: str, database: str | None) -> None:
    """Run one read-only SQL statement, or say how to open the file.

    The file is opened read-only. A table that is wider than the terminal is printed as one line
    per value. Without STATEMENT, prints how to open the database with other programs.

    \b
    Example:
      tuner sql
      tuner sql "select model_file, chunk_size, gain from tuning_overview"
      tuner sql "select * from sample" --format csv > samples.csv
    """
    from tuner.store.queries import run_statement

    file = existing(database)
    if statement is None:
        _print_ways(file)
        return
    with run_statement(file, statement) as result:
        columns = list(result.columns)
        rows = list(itertools.islice(result.rows, MOST_ROWS + 1))
    if len(rows) > MOST_ROWS:
        raise click.ClickException(
            f"the statement gives more than {MOST_ROWS:,} rows: add a LIMIT, or use `tuner export`"
        )
    FORMS[form](columns, rows)


def _print_ways(file: Path) -> None:
    from shlex import quote

    from tuner.store.queries import view_names

    views = view_names(file)
    name = printable(quote(str(file)))
    click.echo(f'here:         tuner sql "select * from {views[0]}"')
    click.echo(f"by SQLite:    sqlite3 -readonly {name}")
    click.echo(f"in a browser: datasette {name}")
    click.echo("views:        " + f"\n{'':14}".join(views))


def _print_as_table(columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    from rich.cells import cell_len

    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *texts, strict=True)]
    if sum(widths) + 2 * len(widths) > console().width:
        room = max(map(len, columns))
        records = (
            "\n".join(
                f"{printable(name):<{room}}  {text}".rstrip()
                for name, text in zip(columns, row, strict=True)
            )
            for row in texts
        )
        click.echo("\n\n".join(records))
        return
    numbers = [
        all(isinstance(row[place], int | float | None) for row in rows)
        for place in range(len(columns))
    ]
    print_table(
        [
            Column(printable(name), "right" if number else "left")
            for name, number in zip(columns, numbers, strict=True)
        ],
        texts,
    )


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else printable(str(_plain(value)))


def _plain(value: Any) -> Any:
    """Turn a value into one that text and JSON can hold: bytes become hexadecimal digits."""
    if value is None:
        return ""
    return value.hex() if isinstance(value, bytes) else value


def _print_as_csv(columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    safe = printable if sys.stdout.isatty() else str
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in itertools.chain([columns], rows):
        writer.writerow([safe(v) if isinstance(v, str) else _plain(v) for v in row])
    sys.stdout.flush()


def _print_as_json(columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    lines = (
        json.dumps(dict(zip(columns, map(_in_json, row), strict=True)), allow_nan=False)
        for row in rows
    )
    if not rows:
        click.echo("[]")
        return
    for place, line in enumerate(lines):
        click.echo(f"{',' if place else '['}\n  {line}", nl=False)
    click.echo("\n]")


def _in_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return None if value is None else _plain(value)


FORMS = {"table": _print_as_table, "csv": _print_as_csv, "json": _print_as_json}
