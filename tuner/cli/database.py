"""Maintains the database file and checks the installation."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import click

from tuner.cli.options import (
    FINDING,
    Failing,
    database_option,
    existing,
    json_option,
    print_json,
    tidy_end,
)
from tuner.cli.output import Column, print_table, showing
from tuner.environment import POLICIES, Environment
from tuner.formatting import counted
from tuner.paths import cache_path


@click.group(cls=Failing)
def db() -> None:
    """Maintain the database file: back up, check, repair, upgrade."""


@db.command()
@database_option
def path(database: str | None) -> None:
    """Print the path of the database, whether or not it exists.

    \b
    Example:
      sqlite3 -readonly "$(tuner db path)" 'select * from tuning_overview'
    """
    click.echo(cache_path(database))


@db.command()
@database_option
def upgrade(database: str | None) -> None:
    """Upgrade the database to this version's schema, or create it.

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
@json_option("a list of findings")
@click.pass_context
def check(ctx: click.Context, database: str | None, as_json: bool) -> None:
    """Check the database page by page and row by row.

    Changes nothing. Exits with 3 if something is wrong.

    \b
    Example:
      tuner db check
    """
    from tuner.store import maintenance

    file = existing(database)
    findings = maintenance.check(file)
    if as_json:
        print_json([{"what": found.what, "next_step": found.next_step} for found in findings])
    else:
        lines = [f"{found.what}: {found.next_step}" for found in findings]
        click.echo("\n".join(lines or [f"{file} is sound"]))
    if findings:
        ctx.exit(FINDING)


@db.command()
@click.option("--yes", is_flag=True, help="Do it without asking.")
@database_option
@click.pass_context
def repair(ctx: click.Context, database: str | None, yes: bool) -> None:
    """Move a damaged database aside and import what can be read from it.

    The damaged file stays beside the new one; a sound one is unchanged. Exits with 3 if no run
    could be read.

    \b
    Example:
      tuner db repair --yes
    """
    from tuner.exchange.importing import import_files
    from tuner.store import maintenance, migrate

    file = existing(database)
    findings = maintenance.check(file)
    if not findings:
        click.echo(f"{file} is sound: nothing was changed")
        return
    plan = f"{findings[0].what}: move {file} aside and import what can be read from it"
    if not yes and not sys.stdin.isatty():
        raise click.ClickException(f"{plan}? nothing was changed: --yes does it")
    if not yes and not click.confirm(f"{plan}?"):
        raise click.ClickException("nothing was changed")
    moved = maintenance.set_aside(file)
    if moved is None:
        click.echo(f"{file} is sound by now: nothing was changed")
        return
    click.echo(f"moved the damaged file to {moved}")
    _, (found,) = import_files(file, [moved], as_own=True)
    migrate.upgrade(file)
    click.echo(
        f"imported {counted(found.new_runs, 'run')} with {counted(found.new_samples, 'sample')}, "
        f"rejected {counted(found.rejected, 'row')}"
    )
    click.echo("pins and policies are not taken over: set them again with `tuner pin`, `db policy`")
    if found.error:
        click.echo(f"not all of it could be read: {found.error}", err=True)
    if not found.new_runs:
        click.echo("nothing could be read: import a backup or an export with `tuner import`")
        ctx.exit(FINDING)


@db.command()
@click.argument("copy", metavar="FILE", type=click.Path(path_type=Path))
@database_option
def backup(copy: Path, database: str | None) -> None:
    """Write a consistent copy of the database to FILE.

    Other processes may go on writing. An existing FILE is not overwritten.

    \b
    Example:
      tuner db backup tuning-2026-01-31.db
    """
    from tuner.store.database import back_up

    file = existing(database)
    with tidy_end():
        back_up(file, copy)
    click.echo(f"{copy}: a copy of {file}, {copy.stat().st_size:,} bytes")


@db.command()
@database_option
def recompute(database: str | None) -> None:
    """Recompute all verdicts from the samples.

    \b
    Example:
      tuner db recompute
    """
    from tuner.store.runs import recompute as recompute_file

    file = existing(database)
    count = recompute_file(file, showing("recomputing"))
    click.echo(f"{file}: recomputed the verdicts of {counted(count, 'key')}")


@db.command()
@click.argument("name", required=False, type=click.Choice(Environment._fields))
@click.argument("policy", required=False, type=click.Choice(POLICIES))
@json_option("the policies")
@database_option
def policy(name: str | None, policy: str | None, as_json: bool, database: str | None) -> None:
    """Show or set how strictly a verdict's software must match.

    A verdict is used where its software matches: "exact" compares the whole text, "same minor"
    the first two parts of a version, "ignore" nothing. Setting one recomputes all verdicts.

    \b
    Example:
      tuner db policy mujoco_version exact
    """
    from tuner.store.runs import read_policies, set_policy

    file = existing(database)
    if name and not policy:
        raise click.UsageError(f"give the policy of {name}: {', '.join(POLICIES)}")
    if name and policy:
        set_policy(file, name, policy)
    policies = read_policies(file)
    if as_json:
        print_json(policies)
        return
    print_table([Column("validator"), Column("policy")], sorted(policies.items()))


@db.command()
@json_option("the figures")
@database_option
def stats(as_json: bool, database: str | None) -> None:
    """Print how much is stored.

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
    return [(name.replace("_", " "), _figure(name, value)) for name, value in found.items()]


def _figure(name: str, value: Any) -> str:
    if value is None:
        return "none yet"
    if name.endswith("_rate"):
        return f"{100 * value:.1f} %"
    if name.endswith("_seconds"):
        return f"{value:.1f} s"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


@click.command()
@database_option
@json_option("a list of readings")
@click.pass_context
def doctor(ctx: click.Context, database: str | None, as_json: bool) -> None:
    """Check the installation and suggest fixes.

    Changes nothing. Exits with 3 if there is a problem.

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
