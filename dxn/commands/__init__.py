"""The commands of dxn."""
