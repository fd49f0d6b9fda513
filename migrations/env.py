"""Run migrations: on the connection that the store hands over, or on the user's own database.

The store opens its transaction with BEGIN IMMEDIATE before it reads which revision the file
has, so that of several processes one migrates and the others find the work done. Logging is
left alone: configuring it from here would silence the host program.
"""

from alembic import context
from sqlalchemy import Connection


def migrate(connection: Connection) -> None:
    """Run the revisions asked for inside the transaction that is open on `connection`."""
    context.configure(connection=connection, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    raise SystemExit("tuner's migrations look at the data they move: run them without --sql")

handed_over = context.config.attributes.get("connection")
if handed_over is not None:
    migrate(handed_over)
else:
    from tuner.paths import cache_path
    from tuner.store.database import writing
    from tuner.store.migrate import make_folder

    database = cache_path()
    make_folder(database)
    with writing(database) as connection:
        migrate(connection)
