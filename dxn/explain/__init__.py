"""Pictures of tokens, and plots of a run."""
