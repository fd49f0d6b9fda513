"""The command line: arguments in, tables out, an exit code. The only place that prints.

What was asked for goes to stdout, everything else to stderr. 0: done; 1: refused or failed;
2: a wrong call; 3: done, with a finding that somebody should look at, such as "undecided".
"""

from __future__ import annotations

import click

import tuner
from tuner.cli.database import db
from tuner.cli.doctor import doctor
from tuner.cli.options import Failing, database_option
from tuner.cli.show import list_keys, show
from tuner.cli.tune import tune


@click.group(cls=Failing, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tuner.__version__, prog_name="tuner")
@database_option
def main(database: str | None) -> None:
    """Measure how many MuJoCo environments one work item should hold, and keep the timings.

    \b
    Example:
      tuner tune robot.xml --num-envs 1024
      tuner list
    """


main.add_command(tune)
main.add_command(list_keys)
main.add_command(show)
main.add_command(db)
main.add_command(doctor)
