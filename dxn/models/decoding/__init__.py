"""Models that write: decoders, the key-value cache, sampling and beam search."""
