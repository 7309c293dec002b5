"""Training, evaluation, metrics, checkpoints and the run folder."""
