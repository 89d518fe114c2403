"""The problem of a configuration in statements."""

from __future__ import annotations

from farm.gemm import PROBLEM_COLUMNS

PROBLEM = ", ".join(f"c.{column}" for column in PROBLEM_COLUMNS)
"""Columns that identify the problem of a configuration (c)."""
