"""Export of a trained model to graphs that run without dxn, and publication on a hub."""
