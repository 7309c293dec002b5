"""Options that are chosen from the data."""
