"""The command line: arguments in, tables out, an exit code. The only place that prints.

What was asked for goes to stdout, everything else to stderr. 0: done; 1: refused or failed;
2: a wrong call; 3: done, with a finding that somebody should look at, such as "undecided".
"""

from __future__ import annotations

import io
import sys

import click

import tuner
from tuner.cli.compare import compare
from tuner.cli.database import db
from tuner.cli.doctor import doctor
from tuner.cli.exchange import export, import_
from tuner.cli.keys import forget, pin, unpin, verify
from tuner.cli.listing import list_keys
from tuner.cli.options import Failing, database_option_of_all
from tuner.cli.pictures import plot, report
from tuner.cli.show import history, show
from tuner.cli.sql import sql
from tuner.cli.tune import tune
from tuner.cli.why import why


def _take_any_text() -> None:
    """Print what the terminal cannot show as escapes, instead of failing on it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@click.group(cls=Failing, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tuner.__version__, prog_name="tuner")
@database_option_of_all
def main() -> None:
    """Measure how many MuJoCo environments one work item should hold, and keep the timings.

    \b
    Example:
      tuner tune robot.xml --num-envs 1024
      tuner list
    """
    _take_any_text()


main.add_command(tune)
main.add_command(why)
main.add_command(verify)
main.add_command(pin)
main.add_command(unpin)
main.add_command(forget)
main.add_command(list_keys)
main.add_command(show)
main.add_command(plot)
main.add_command(report)
main.add_command(export)
main.add_command(import_)
main.add_command(history)
main.add_command(compare)
main.add_command(sql)
main.add_command(db)
main.add_command(doctor)
