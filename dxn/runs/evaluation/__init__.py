"""Evaluate a run, and what is printed and drawn of it."""
