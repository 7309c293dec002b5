"""Options that are chosen from the data, one module per modality."""
