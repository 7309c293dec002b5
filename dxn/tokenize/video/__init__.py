"""Video as tokens."""
