"""Benchmarks: each module answers one question and is run from the repository root as `python -m benchmarks.NAME`."""
