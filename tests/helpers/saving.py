"""Save a changed public model in its own format, and load it in transformers."""

import torch

import dxn


@torch.no_grad()
def changed_and_saved(folder, **options):
    """Load a public model, change all of its weights, and save it in FOLDER/saved.

    Returns:
        The changed model, and the folder.
    """
    model = dxn.from_public(str(folder), dtype="float32")
    torch.manual_seed(2)
    for parameter in model.model.parameters():
        parameter.add_(0.03 * torch.randn_like(parameter))
    model.save_public(folder / "saved", str(folder), **options)
    return model, folder / "saved"


def load_complete(cls, folder):
    """Load a model of transformers, whose folder must have exactly its tensors."""
    peer, report = cls.from_pretrained(folder, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], report
    return peer.eval()
