"""Images as tokens."""
