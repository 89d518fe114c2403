"""Backups of a farm: taking, checking and restoring them, and moving an embedded database to a server."""
