"""Arguments, filters and exit codes that several commands share."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from click.shell_completion import CompletionItem

from tuner.budget import TIME_BUDGET_S
from tuner.cli.output import Column, print_table
from tuner.errors import TunerError
from tuner.formatting import printable
from tuner.paths import DATABASE_VARIABLE, cache_path
from tuner.records import LARGEST_INTEGER
from tuner.store.sqlite import exists, is_empty

if TYPE_CHECKING:
    from tuner.store.queries import Selection

FAILED = 1
USAGE = 2
FINDING = 3
INTERRUPTED = 128 + signal.SIGINT
"""The exit code that shells report after Ctrl-C."""

MOST_MATCHES = 20
"""Matching keys that are listed when a text names several."""

Command = TypeVar("Command", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """A finite number of 0 or more: rejects "nan" and "inf", which Python reads as numbers."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the number."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


def time_budget_option(meaning: str) -> Callable[[Command], Command]:
    """Make the option that says how long a measurement may take."""
    return click.option(
        "--time-budget",
        type=FiniteRange(),
        metavar="SECONDS",
        default=TIME_BUDGET_S,
        show_default=True,
        help=meaning,
    )


class Failing(click.Group):
    """A group whose commands fail with one line and exit code 1 instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and print an error as its message."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # The reader has seen enough, as in `| head`; without this Python complains at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(FAILED)
        except click.ClickException as error:
            if error.exit_code == USAGE:
                raise  # click shows how the command is used
            message = error.format_message()
        except TunerError as error:
            message = str(error)
        except Exception as error:
            # limits of the terminal or the machine, such as a full disk behind stdout
            message = f"{type(error).__name__}: {error}"
        click.echo(printable(f"tuner: {' '.join(message.split())}"), err=True)
        raise click.exceptions.Exit(FAILED)


@contextmanager
def tidy_end() -> Iterator[None]:
    """Let SIGTERM clean up unfinished files as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set a signal handler
        return

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _inherited(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    return ctx.find_root().params.get("database") if value is None else value


database_option = click.option(
    "--database",
    metavar="PATH|URL",
    callback=_inherited,
    help=f"The tuning database.  [default: ${DATABASE_VARIABLE}, then the user's data folder]",
)
"""It may stand anywhere on the line; the last one wins."""


def existing(database: str | None) -> Path:
    """Find the database for a command that only reads it.

    Raises:
        click.ClickException: if it does not exist; reading never creates one.
    """
    file = cache_path(database)
    if not exists(file) or is_empty(file):
        raise click.ClickException(
            f"there is no tuning in {file} yet: run `tuner tune MODEL.xml --num-envs N`"
        )
    return file


def stored_keys(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a key in a shell; offers nothing if the database cannot be read."""
    from tuner.store.queries import Selection, read_overview

    columns = ("tuning_key", "model_file", "num_envs")
    try:
        file = existing(ctx.params.get("database"))
        rows = read_overview(file, Selection(key=incomplete or None), columns=columns)
    except (TunerError, click.ClickException):
        return []
    items = []
    for key, model_file, num_envs in (row.values() for row in rows):
        about = printable(f"{Path(model_file or '').name} {num_envs or ''}")
        items.append(CompletionItem(key, help=about))
    return items


def json_option(content: str) -> Callable[[Command], Command]:
    """Make the option --json, passed as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print JSON: {content}.")


def key_argument(*, required: bool = True) -> Callable[[Command], Command]:
    """Make the argument that names a key."""
    return click.argument("key", required=required, shell_complete=stored_keys)


def keys_argument(*, required: bool = False) -> Callable[[Command], Command]:
    """Make the argument that names several."""
    metavar = "KEY..." if required else "[KEY...]"
    return click.argument(
        "keys", metavar=metavar, nargs=-1, required=required, shell_complete=stored_keys
    )


def the_key(file: Path, text: str) -> str:
    """Find the one key whose digest starts with a text, or whose model file has that name.

    Raises:
        click.ClickException: no key matches, or several do; these are listed on stderr.
    """
    from tuner.store.queries import find_keys

    if not text:  # a shell's unset variable, which every key starts with
        raise click.ClickException("the key is empty: `tuner list` shows all keys")
    found = {row["tuning_key"]: row for row in find_keys(file, text)}
    if text in found:
        return text
    if not found:
        raise click.ClickException(
            f"no key starts with {text!r} and no model file has that name: "
            "`tuner list` shows all keys"
        )
    if len(found) > 1:
        names = ("num_envs", "nthread", "bench_nsteps")
        print_table(
            [
                Column("key"),
                Column("model file", yields=True),
                *(Column(heading, "right") for heading in ("envs", "threads", "steps")),
            ],
            [
                (name[:24], row["model_file"] or "", *(str(row[n] or "") for n in names))
                for name, row in list(found.items())[:MOST_MATCHES]
            ],
            err=True,
        )
        raise click.ClickException(
            f"{len(found)} keys match {text!r}: give more characters of one of them"
        )
    return str(next(iter(found)))


def print_json(value: Any) -> None:
    """Print JSON for a program; what is not finite is null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
    click.echo(json.dumps(finite, indent=2))


UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
NEVER, ALWAYS = "", "~"
"""Texts that sort before and after every stored time."""


def _text(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    if text == "":  # a shell's unset variable, which would select all
        raise click.BadParameter("it is empty: leave the option out to select all")
    return text


def _moment(more: timedelta) -> Callable[..., str | None]:
    """Make the callback that turns a day (and `more`) or an age into a stored time's beginning."""

    def read(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
        if text is None:
            return None
        number, unit = text[:-1], UNITS.get(text[-1:])
        try:
            if unit is not None and number.isascii() and number.isdecimal():
                return f"{datetime.now(UTC) - unit * int(number):%Y-%m-%dT%H:%M:%S}"
            return (date.fromisoformat(text) + more).isoformat()
        except OverflowError:
            return NEVER if unit else ALWAYS  # outside the calendar
        except ValueError:
            raise click.BadParameter(
                f"{text[:40]!r} is neither a day, such as 2026-01-31, nor an age, such as 12h, "
                "7d or 3w"
            ) from None

    return read


since, until = _moment(timedelta()), _moment(timedelta(days=1))


FILTERS = (
    click.option("--key", metavar="PREFIX", callback=_text, help="Keys that start with PREFIX."),
    click.option(
        "--model",
        metavar="GLOB",
        callback=_text,
        help="Keys whose model file's name or path matches a pattern with * and ?.",
    ),
    click.option(
        "--device",
        metavar="TEXT",
        callback=_text,
        help="Keys of CPUs, or instruction sets, with TEXT in their name.",
    ),
    click.option(
        "--num-envs", metavar="N", type=click.IntRange(min=1), help="Keys of N environments."
    ),
    click.option(
        "--min-gain",
        metavar="PERCENT",
        type=FiniteRange(),
        help="Keys whose choice saves at least PERCENT of the default's time.",
    ),
    click.option(
        "--decided/--undecided",
        default=None,
        help="Keys that are decided (by timings or a pin), or are not.",
    ),
    click.option(
        "--since",
        metavar="WHEN",
        callback=since,
        help="Measured on a day (2026-01-31, UTC) or later, or within an age (12h, 7d, 3w).",
    ),
    click.option(
        "--until",
        metavar="WHEN",
        callback=until,
        help="Measured on a day (2026-01-31, UTC) or earlier, or before an age (12h, 7d, 3w).",
    ),
)


def filter_options(command: Command) -> Command:
    """Add the filters; all that are given must match."""
    for option in reversed(FILTERS):
        command = option(command)
    return command


def selected(*, num_envs: int | None, min_gain: float | None, **others: Any) -> Selection:
    """Turn the values of `filter_options` into a selection."""
    from tuner.store.queries import Selection

    return Selection(
        num_envs=None if num_envs is None else min(num_envs, LARGEST_INTEGER),
        min_gain=None if min_gain is None else min_gain / 100,
        **others,
    )
