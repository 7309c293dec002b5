"""dxn: text, images and audio as D×N token matrices, learned by one transformer."""

__version__ = "0.1.0"
__all__ = ["from_public", "load"]


def load(folder, *, device="cpu"):
    """A trained model from its run folder or model folder: `.predict(...)`, `.tokens(...)`, `.embed(...)`."""
    from dxn.train.bundle import load  # torch takes seconds to import, `dxn --help` must not

    return load(folder, device=device)


def from_public(source, *, revision=None, part=None, strict=True, device="cpu"):
    """A public checkpoint (ViT, BERT, AST ...): a file, folder or hub id, used like what `load` gives."""
    from dxn.train.bundle import from_public

    return from_public(source, revision=revision, part=part, strict=strict, device=device)
