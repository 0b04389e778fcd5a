"""Alembic's environment and the migrations, one file a step, shipped in the package."""
