"""What a campaign came to, in a few numbers."""
