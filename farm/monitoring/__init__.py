"""Watching a farm with Prometheus: every metric by name, and the check of dashboards and rules."""
