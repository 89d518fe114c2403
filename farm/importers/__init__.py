"""Importers of rows that were measured elsewhere: one module per format."""
