"""Public checkpoints as encoders: the tokens of an input are their output vectors."""

from dataclasses import replace

import pytest
import torch
from helpers.checkpoints import words_of_bert
from helpers.peers import CASES, cases, parity

from dxn.config.instantiate import build, completed
from dxn.core.errors import UserError
from dxn.models import Backbone, EarlyFusion, MultimodalModel
from dxn.weights import as_encoder, load_encoder, read_public

pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")
SIZES = cases.Sizes(dim=44, depth=2, heads=2, batch=3, side=40, length=23)
# Class tokens, registers, another pooling, windows, and texts of an encoder and of a decoder.
NAMES = [
    *("BERT", "ModernBERT", "GPT-2", "CLIP, text"),
    *("ViT (timm)", "DINOv2 with registers, SwiGLU", "SigLIP, image"),
    *("AST", "Whisper, encoder", "wav2vec 2.0, group norm, post-norm", "VideoMAE"),
]


def encoder_of(public, dim=None, dtype=torch.float64):
    """The filled adapter of a checkpoint, and what was not loaded."""
    encoder = as_encoder(public, dim)
    ((key, node),) = encoder.architecture.adapters.items()
    adapter = build(completed(node), key="adapters")
    encoder.prepare({key: adapter})
    backbone = Backbone(adapter.dim, depth=1, num_heads=1)
    model = MultimodalModel(
        {key: adapter},
        inputs={"a": key},
        fusion=EarlyFusion(adapter.dim),
        backbone=backbone,
        head=torch.nn.Identity(),
    ).to(dtype)
    result = encoder.fill(model, only=(f"adapters.{key}.",))
    return adapter.eval(), result


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_tokens_are_the_output_vectors_of_the_checkpoint(name, tmp_path):
    p = parity.pair(CASES[name], tmp_path, sizes=SIZES)
    batch, _ = parity.inputs(p, SIZES, torch.float64)
    expected, _ = p.model.encode(p.model.embed(batch))
    adapter, result = encoder_of(p.public)
    tokens = adapter(batch[p.case.modality])
    assert not result.missing
    assert not result.unexpected
    # Such as clips without padding.
    options = [part.architecture.encoder for part in (as_encoder(p.public), p.public)]
    assert options[0].get(p.case.modality, {}) == options[1].get(p.case.modality, {})
    assert torch.equal(tokens.mask, expected.mask)
    assert torch.allclose(tokens.x[tokens.mask], expected.x[tokens.mask], rtol=0, atol=1e-9)
    assert tokens.spans[-1].coords.shape[:2] == tokens.mask.shape


@torch.no_grad()
def test_a_text_has_the_same_tokens_in_any_batch_and_projected_ones_in_another_width(tmp_path):
    cases.save(CASES["BERT"], CASES["BERT"].make(SIZES), tmp_path, heads=SIZES.heads)
    words_of_bert().save(str(tmp_path / "tokenizer.json"))
    public = read_public(str(tmp_path))
    adapter, _ = encoder_of(public, dtype=torch.float32)
    texts = ["w5 w6 w7 w8 w9 w5", "w9"]
    together = adapter.tokens(texts)
    assert torch.equal(load_encoder(str(tmp_path)).eval().tokens(texts).x, together.x)
    for i, text in enumerate(texts):
        assert torch.allclose(together[i], adapter.tokens([text])[0], rtol=0, atol=1e-5)
    narrow, result = encoder_of(public, 10, torch.float32)
    assert narrow.tokens(texts).x.shape == (2, 8, 10)
    assert not result.missing  # the projection is new for every checkpoint
    assert not narrow.has_vocabulary


def test_a_checkpoint_with_several_inputs_is_no_encoder(tmp_path):
    cases.save(CASES["BERT"], CASES["BERT"].make(SIZES), tmp_path, heads=SIZES.heads)
    public = read_public(str(tmp_path))
    joint = replace(public.architecture, adapters={"image": {}, "text": {}})
    with pytest.raises(UserError, match=r"must have one input, got image, text; use another"):
        as_encoder(replace(public, architecture=joint))
