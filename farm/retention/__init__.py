"""Retention: rules that remove old data which nothing needs. `farm prune` runs them."""
