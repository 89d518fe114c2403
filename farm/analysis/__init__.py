"""What measurements show beyond their rows: studies of a kernel family's parameters."""
