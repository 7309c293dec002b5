"""Series as tokens."""
