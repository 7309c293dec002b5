"""Sound as tokens."""
