"""Alembic's entry: runs the steps on the connection that `store.schema.migrate` holds the migration lock on."""

from alembic import context

from fencepost.store.schema import VERSION_TABLE
from fencepost.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
context.run_migrations()
