"""Text generation: a decoder with cross-attention writes one text per sample."""
