"""Data sets to try dxn with, as a package outside dxn."""
