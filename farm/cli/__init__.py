"""The command line. Each command lives in the module of its subject; this one puts them together."""

from farm.cli.app import main

__all__ = ["main"]
