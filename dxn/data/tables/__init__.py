"""Readers of table files."""
