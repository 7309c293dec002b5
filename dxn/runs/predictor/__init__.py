"""Use a trained model: read inputs, predict, write tables."""
