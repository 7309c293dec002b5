"""Explain a model: pictures of tokens and attention, the HTML page, and plots of a run."""
