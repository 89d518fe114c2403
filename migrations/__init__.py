"""Alembic revisions of the farm's database, and its views and functions. `farm db upgrade` applies them: see README.md."""
