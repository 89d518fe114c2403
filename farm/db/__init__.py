"""Postgres: tables, the engine, and one module of queries for each thing that is stored."""
