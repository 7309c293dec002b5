"""Detection: find the objects of a picture, or the events of a sound or series."""
