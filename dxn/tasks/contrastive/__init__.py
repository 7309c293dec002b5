"""Contrastive learning: align the embeddings of the inputs of a row, and search with them."""
