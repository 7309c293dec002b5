"""Models: dropout of several inputs, registers of language models, and extreme temperatures."""

import pytest
import torch
from helpers.runs import PLAIN, SMALL, refused

from dxn.core.dropout import keyed
from dxn.core.tokens import Span, Tokens
from dxn.models import Backbone, BottleneckFusion, LateFusion
from dxn.models.decoding.search import make_sampler


def tokens_of(name, x):
    size, length, _ = x.shape
    coords = torch.zeros(size, length, 1)
    mask = torch.ones(size, length, dtype=torch.bool)
    return Tokens(x, mask, (Span(name, name, 0, length, coords),))


@pytest.mark.parametrize("fusion", [LateFusion, BottleneckFusion])
def test_inputs_lose_other_features_in_dropout(fusion):
    torch.manual_seed(0)
    fuse = fusion(14, inputs=("front", "back")).train()
    torch.nn.init.zeros_(fuse.input_embedding.weight)
    backbone = Backbone(14, depth=1, num_heads=2, dropout=0.5).train()
    x = torch.randn(3, 5, 14)
    with keyed(torch.arange(3), 7):
        encoded, _ = fuse([tokens_of("front", x), tokens_of("back", x)], backbone)
    front, back = encoded.select("front").x, encoded.select("back").x
    assert not torch.allclose(front, back)
    # The masks still depend on the step and the samples only.
    with keyed(torch.arange(3), 7):
        again, _ = fuse([tokens_of("front", x), tokens_of("back", x)], backbone)
    assert torch.equal(again.x, encoded.x)


def test_a_language_model_with_registers_is_refused(tmp_path, capsys):
    table = tmp_path / "text.txt"
    table.write_text("to be or not to be\n" * 50)
    options = ["head=language", "backbone.causal=true", "fusion.registers=4"]
    (line,) = refused(capsys, ["train", str(table), *SMALL, *PLAIN, *options])
    assert "fusion.registers: must be 0 with head=language" in line and "got 4" in line


@pytest.mark.parametrize("temperature", [1e-40, 1e-300, 1e-3])
@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.9}])
def test_a_temperature_close_to_zero_chooses_the_most_probable_token(temperature, options):
    sample = make_sampler(temperature, **options, seed=0)
    log_probs = torch.randn(11, 17).log_softmax(-1)
    assert torch.equal(sample(log_probs), log_probs.argmax(-1))
