"""The functions of `import dxn` that need more than a model: training, and what it returns."""
