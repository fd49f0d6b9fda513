"""What several commands share: how the database is named, and how an error leaves."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from click.shell_completion import CompletionItem

from tuner.budget import TIME_BUDGET_S
from tuner.cli.tables import printable
from tuner.errors import TunerError
from tuner.paths import DATABASE_VARIABLE, cache_path
from tuner.store.sqlite import exists, is_empty

FAILED = 1
USAGE = 2
FINDING = 3
INTERRUPTED = 128 + signal.SIGINT
"""As a shell reports what Ctrl-C has ended."""

Command = TypeVar("Command", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """A number of 0 or more; "nan" and "inf", which Python calls numbers, are none."""

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
    """A group whose commands fail with one clear line and exit code 1, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of ours becomes its message."""
        try:
            return super().invoke(ctx)
        except TunerError as error:
            fail(ctx, str(error))
        except (click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)  # whoever pressed it knows
        except BrokenPipeError:
            # Whoever read has enough, as in `| head`. What is still unwritten goes nowhere, or
            # Python would complain at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(FAILED)
        except click.ClickException as error:
            if error.exit_code == USAGE:
                raise  # click shows how the command is used
            fail(ctx, error.format_message())
        except Exception as error:
            # The terminal's and the machine's limits, a full disk behind stdout say, or a file
            # with contents that nobody thought of.
            fail(ctx, f"{type(error).__name__}: {error}")


def fail(ctx: click.Context, message: str) -> NoReturn:
    """Leave with one line on stderr, whatever is repeated in it of what is stored."""
    click.echo(printable(f"tuner: {' '.join(message.split())}"), err=True)
    ctx.exit(FAILED)


@contextmanager
def tidy_end() -> Iterator[None]:
    """Let SIGTERM end what Ctrl-C would end: first, what is unfinished is removed."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no thread but that one may set what a signal does
        return

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def database_option(command: Command) -> Command:
    """Add --database, which counts wherever on the line it stands; the last one wins."""
    return _database(expose_value=True)(command)


def database_option_of_all(command: Command) -> Command:
    """Add --database in front of a subcommand, which is handed it."""
    return _database(expose_value=False)(command)


def _database(*, expose_value: bool) -> Callable[[Command], Command]:
    return click.option(
        "--database",
        metavar="PATH|URL",
        expose_value=expose_value,
        callback=_remember,
        help=f"The tuning database.  [default: ${DATABASE_VARIABLE}, then the user's data folder]",
    )


def _remember(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    shared = ctx.ensure_object(dict)
    if value is not None:
        shared["database"] = value
    return shared.get("database")


def existing(database: str | None) -> Path:
    """Name the database for a command that only reads it.

    Raises:
        click.ClickException: if there is none; reading never makes one.
    """
    file = cache_path(database)
    if not exists(file) or is_empty(file):
        raise click.ClickException(
            f"there is no tuning in {file} yet: `tuner tune MODEL.xml --num-envs N` makes one"
        )
    return file


def stored_keys(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer a shell the keys that start so; none where the database cannot be read."""
    from tuner.store.queries import EVERYTHING, read_overview

    try:
        file = existing(ctx.params.get("database"))
        rows = read_overview(file, EVERYTHING, columns=("tuning_key", "model_file", "num_envs"))
    except (TunerError, click.ClickException):
        return []
    return [
        CompletionItem(
            row["tuning_key"],
            help=printable(f"{Path(row['model_file'] or '').name} {row['num_envs'] or ''}"),
        )
        for row in rows
        if row["tuning_key"].startswith(incomplete)
    ]


def key_argument(*, required: bool = True) -> Callable[[Command], Command]:
    """Make the argument that names a key by its first characters."""
    return click.argument("key", required=required, shell_complete=stored_keys)


def keys_argument(*, required: bool = False) -> Callable[[Command], Command]:
    """Make the argument that names several."""
    metavar = "KEY..." if required else "[KEY...]"
    return click.argument(
        "keys", metavar=metavar, nargs=-1, required=required, shell_complete=stored_keys
    )


def the_key(file: Path, prefix: str) -> str:
    """Find the one key that starts with a text.

    Raises:
        click.ClickException: if none does, or several do.
    """
    from tuner.store.queries import find_keys

    if not prefix:  # a shell's unset variable, which every key starts with
        raise click.ClickException("the key is empty: `tuner list` shows all")
    found = [row["tuning_key"] for row in find_keys(file, prefix)]
    if prefix in found:
        return prefix
    if not found:
        raise click.ClickException(f"no key starts with {prefix!r}: `tuner list` shows all")
    if len(found) > 1:
        few = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise click.ClickException(
            f"{len(found)} keys start with {prefix!r}: {few}; give more of it"
        )
    return str(found[0])


def print_json(value: Any) -> None:
    """Print what a program is to read."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def print_json_lines(rows: Sequence[Any]) -> None:
    """Print a list that may be long: a line for each of it, in a third of the time."""
    lines = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
    click.echo(f"[\n{lines}\n]" if rows else "[]")
