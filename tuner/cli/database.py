"""`tuner db`: where the database is, and bringing it to this version's schema."""

from __future__ import annotations

import click

from tuner.cli.options import Failing, database_option
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
