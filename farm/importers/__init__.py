"""Rows that were measured elsewhere, brought into the database: one module per kind of source."""
