"""Semantic segmentation: a class for each pixel of a picture."""
