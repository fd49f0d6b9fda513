"""`tuner doctor`: one screen that says whether all is well here."""

from __future__ import annotations

import dataclasses

import click

from tuner.cli.options import FINDING, database_option, print_json
from tuner.paths import cache_path


@click.command()
@database_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of readings.")
@click.pass_context
def doctor(ctx: click.Context, database: str | None, as_json: bool) -> None:
    """Say whether all is well here, and for each problem what to do. Changes nothing.

    Exits with 3 if there is a problem.

    \b
    Example:
      tuner doctor
    """
    from tuner.doctor import examine

    readings = examine(cache_path(database))
    problems = [reading for reading in readings if reading.problem]
    if as_json:
        print_json([dataclasses.asdict(reading) for reading in readings])
    else:
        for reading in readings:
            mark = "!" if reading.problem else " "
            click.echo(f"{mark} {reading.name:<17} {reading.value}")
            if reading.problem:
                click.echo(f"    {reading.problem}")
                click.echo(f"    next: {reading.next_step}")
        click.echo(f"\n{len(problems)} to look at" if problems else "\nall is well")
    if problems:
        ctx.exit(FINDING)
