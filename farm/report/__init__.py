"""What a campaign came to, for people and for autotuners."""
