"""`tuner db`: where the database is, its schema, and what to do when it is damaged."""

from __future__ import annotations

import click

from tuner.cli.options import FINDING, Failing, database_option, existing, print_json
from tuner.paths import cache_path


@click.group(cls=Failing)
def db() -> None:
    """Look after the database file."""


@db.command()
@database_option
def path(database: str | None) -> None:
    """Print where the database is, whether or not it is there yet.

    \b
    Example:
      sqlite3 "$(tuner db path)" 'select * from tuning_overview'
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
    from tuner.store.check import check as check_file

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

    The damaged file stays beside the new one; a sound one is left alone.

    \b
    Example:
      tuner db repair
    """
    from tuner.store.repair import repair as repair_file

    file = existing(database)
    done = repair_file(file)
    if done is None:
        click.echo(f"{file} is sound: nothing was changed")
        return
    click.echo(f"moved the damaged file to {done.moved_to}")
    for table, rows in done.kept.items():
        refused = done.refused[table]
        click.echo(f"{table}: {rows} rows kept" + (f", {refused} refused" if refused else ""))
