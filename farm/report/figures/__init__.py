"""The charts of a report as data: one module per subject (pure)."""
