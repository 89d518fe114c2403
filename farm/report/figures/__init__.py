"""The pictures of a report, each a chart as plain data (pure)."""
