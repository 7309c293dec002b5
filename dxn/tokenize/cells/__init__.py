"""Numbers, categories and dates as tokens."""
