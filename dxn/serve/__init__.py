"""A trained model as a web service: `dxn serve`."""
