"""Contrastive learning: align the embeddings of the inputs of a row (CLIP, SigLIP)."""
