"""Question answering: find the answer to a question in a text."""
