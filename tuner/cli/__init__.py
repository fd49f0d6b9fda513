"""The command line: arguments in, tables out, an exit code. The only place that prints.

Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 refused or failed, 2 wrong
usage, 3 done with a finding such as "undecided".
"""

from __future__ import annotations

import io
import sys
from typing import Any

import click

import tuner
from tuner.cli.compare import compare
from tuner.cli.data import sql
from tuner.cli.database import db, doctor
from tuner.cli.exchange import export, import_
from tuner.cli.keys import delete, list_keys, pin, show, unpin
from tuner.cli.options import Failing, database_option
from tuner.cli.pictures import plot, report
from tuner.cli.tune import explain, tune, verify

PURPOSES = {
    "Tune": (tune, explain, verify, pin, unpin),
    "Look": (list_keys, show, compare, plot, report, sql),
    "Share": (export, import_),
    "Maintain": (delete, db, doctor),
}


class ByPurpose(Failing):
    """A group whose help lists the commands by purpose, each with its whole first sentence."""

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands."""
        for purpose, commands in PURPOSES.items():
            with formatter.section(purpose):
                rows = [(str(c.name), c.get_short_help_str(limit=200)) for c in commands]
                formatter.write_dl(rows)


@click.group(cls=ByPurpose, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tuner.__version__, prog_name="tuner")
@database_option
def main(**_: Any) -> None:
    """Measure how many MuJoCo environments one work item should hold, and keep the timings.

    \b
    Example:
      tuner tune robot.xml --num-envs 1024
      tuner list
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the terminal cannot encode


for _command in (command for commands in PURPOSES.values() for command in commands):
    main.add_command(_command)
