"""Training: the loop, optimizer, checkpoints, precision, progress and fine-tuning."""
