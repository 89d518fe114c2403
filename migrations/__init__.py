"""Alembic revisions of the farm's database. `farm db upgrade` applies them."""
