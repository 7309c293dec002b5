"""Completion of the command line in bash, zsh and fish. Nothing here imports torch or Hydra."""
