"""dxn: text, images and audio as D×N token matrices, learned by one transformer."""

__version__ = "0.1.0"
__all__ = ["load"]


def load(folder, *, device="cpu"):
    """A trained model from its run folder or model folder: `.predict(...)`, `.tokens(...)`, `.embed(...)`."""
    from dxn.train.bundle import load  # torch takes seconds to import, `dxn --help` must not

    return load(folder, device=device)
