"""Training, validation and test splits."""
