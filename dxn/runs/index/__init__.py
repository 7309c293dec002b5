"""Search in an index of embeddings."""
