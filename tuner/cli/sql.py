"""`tuner sql`: the database asked in its own language, and never changed by it."""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from tuner.cli.options import database_option, existing
from tuner.cli.tables import GAP, LINE, printable, set_in, width

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.store.sqlite import Result

MEASURED_ROWS = 500
"""A table is as wide as these take: it begins before the last row is known."""
BLOCK = 4096
"""Bytes that a pipe with any room takes at once."""
PATIENCE_S = 1.0
"""How long rows wait, altogether, for a reader that does not read, a pager say: no other process
can store anything meanwhile. After that the rest is read at once, and kept until it is wanted."""
MEMORY = 2**24
"""Letters of what is kept that need no file."""


@click.command()
@click.argument("statement", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="How the rows are printed; csv and json hold all digits of a number.",
)
@click.option("--json", "form", flag_value="json", help="The same as --format json.")
@database_option
def sql(statement: str | None, form: str, database: str | None) -> None:
    """Ask the database one statement; or say how to open it with other programs.

    SQLite itself keeps it to reading: the file is opened read-only. Rows are printed as they
    come. A table that is wider than 80 columns becomes a line per value.

    \b
    Example:
      tuner sql
      tuner sql "select model_file, chunk_size, gain from tuning_overview"
      tuner sql "select * from sample" --format csv > samples.csv
    """
    from tuner.store.queries import asked

    file = existing(database)
    if statement is None:
        _print_ways(file)
        return
    from tempfile import SpooledTemporaryFile

    with SpooledTemporaryFile(
        MEMORY, "w+", encoding="utf-8", errors="surrogatepass", newline=""
    ) as kept:
        with asked(file, statement) as result:
            _hand_over(FORMS[form](result), kept)
        kept.seek(0)
        while text := kept.read(MEMORY):
            click.echo(text, nl=False)


def _print_ways(file: Path) -> None:
    from shlex import quote

    import sqlalchemy as sa

    from tuner.store.database import reading

    with reading(file) as connection:
        views = sorted(sa.inspect(connection).get_view_names())
    name = printable(quote(str(file)))
    click.echo(f'here:         tuner sql "select * from {views[0]}"')
    click.echo(f"by SQLite:    sqlite3 -readonly {name}")
    click.echo(f"in a browser: datasette {name}")
    click.echo("views:        " + f"\n{'':14}".join(views))


def _hand_over(lines: Iterable[str], kept: IO[str]) -> None:
    """Print lines while somebody reads them; when nobody does, keep the rest."""
    patience = PATIENCE_S
    for block in _blocks(lines):
        if patience > 0:
            patience -= _waited(patience)
        if patience > 0:
            click.echo(block, nl=False)
        else:
            kept.write(block)


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    waiting: list[str] = []
    size = 0
    for line in lines:
        if size + len(line) > BLOCK:
            yield "".join(waiting)
            waiting, size = [], 0
        waiting.append(line)
        size += len(line)
    yield "".join(waiting)


def _waited(patience: float) -> float:
    """Wait until stdout takes a block, but no longer than so many seconds; how long it was."""
    from select import select

    begun = time.monotonic()
    try:
        ready = select([], [sys.stdout], [], patience)[1]
    except (OSError, ValueError):
        return 0.0  # it is no file that anybody could wait for
    return time.monotonic() - begun if ready else patience


def _as_table(result: Result) -> Iterator[str]:
    first = list(itertools.islice(result.rows, MEASURED_ROWS))
    heading = [printable(name) for name in result.columns]
    rows = (list(map(_cell, row)) for row in itertools.chain(first, result.rows))
    widths = [width(name) for name in heading]
    sides = ["right"] * len(heading)
    for row in first:
        for place, value in enumerate(row):
            widths[place] = max(widths[place], width(_cell(value)))
            if not isinstance(value, int | float | None):
                sides[place] = "left"
    if sum(widths) + len(GAP) * (len(widths) - 1) > LINE:
        yield from _as_records(heading, rows)
        return
    for cells in itertools.chain([heading], rows):
        yield GAP.join(map(_set, cells, widths, sides)).rstrip() + "\n"


def _set(cell: str, room: int, side: str) -> str:
    """Set a cell; one from beyond the measured rows may be wider, and is never cut."""
    return set_in(cell, max(room, width(cell)), side)


def _as_records(heading: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    room = max(map(width, heading))
    for number, cells in enumerate(rows):
        if number:
            yield "\n"
        for name, cell in zip(heading, cells, strict=True):
            yield f"{set_in(name, room, 'left')}{GAP}{cell}".rstrip() + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(str(_plain(value)))


def _plain(value: Any) -> Any:
    """Give a value that text and JSON can hold: bytes as hexadecimal digits."""
    if value is None:
        return ""
    return value.hex() if isinstance(value, bytes) else value


def _as_csv(result: Result) -> Iterator[str]:
    import csv

    class Line:
        """What a writer writes to."""

        text = ""

        def write(self, text: str) -> None:
            self.text = text

    line = Line()
    writer = csv.writer(line, lineterminator="\n")
    safe = printable if sys.stdout.isatty() else str
    for row in itertools.chain([result.columns], result.rows):
        writer.writerow([safe(v) if isinstance(v, str) else _plain(v) for v in row])
        yield line.text


def _as_json(result: Result) -> Iterator[str]:
    before = "["
    for row in result.rows:
        named = dict(zip(result.columns, map(_in_json, row), strict=True))
        yield f"{before}\n  {json.dumps(named, allow_nan=False)}"
        before = ","
    yield "[]\n" if before == "[" else "\n]\n"


def _in_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return None if value is None else _plain(value)


FORMS = {"table": _as_table, "csv": _as_csv, "json": _as_json}
