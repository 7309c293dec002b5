"""The classical baseline, whose prediction is combined with that of the transformer."""
