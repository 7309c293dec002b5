"""The output layer: its options, its loss, and its form for a generation."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dxn.models import Backbone, Decoder, OutputLayer, OutputOptions

V, D, M = 11, 7, 13
OPTIONS = [
    OutputOptions(),
    OutputOptions(tie_embeddings=False),
    OutputOptions(bias=True, scale=D**-0.5),
    OutputOptions(tie_embeddings=False, bias=True, scale=3.0, softcap=2.0),
]


def make_layer(options):
    torch.manual_seed(0)
    layer = OutputLayer(nn.Embedding(V, D), options)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer


@pytest.mark.parametrize("options", OPTIONS)
def test_the_logits_follow_from_the_options(options):
    layer = make_layer(options)
    x = torch.randn(2, M, D)
    weight = layer.embedding.weight if options.tie_embeddings else layer.weight
    expected = options.scale * (x @ weight.T)
    if options.bias:
        expected = expected + layer.bias
    if options.softcap:
        expected = options.softcap * torch.tanh(expected / options.softcap)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer.packed()(x), expected)
    x, targets = x.flatten(0, 1), torch.randint(V, (2 * M,))
    targets[3] = -1
    loss = layer.loss(x, targets, label_smoothing=0.1, ignore_index=-1)
    torch_loss = F.cross_entropy(
        layer(x), targets, label_smoothing=0.1, ignore_index=-1, reduction="sum"
    )
    torch.testing.assert_close(loss, torch_loss)


def test_a_tied_layer_has_no_weights_of_its_own():
    assert not make_layer(OutputOptions()).state_dict()
    own = OutputOptions(tie_embeddings=False, bias=True)
    assert set(make_layer(own).state_dict()) == {"weight", "bias"}


def test_a_copy_of_a_decoder_uses_its_own_embedding():
    decoder = Decoder(
        Backbone(D, depth=1, num_heads=1, causal=True), vocab_size=V, pos_embed="none"
    )
    other = copy.deepcopy(decoder)
    assert other.output.matrix is other.embedding.weight
    shared = nn.Embedding(V, D)
    other.tie(shared)
    assert other.output.matrix is shared.weight
    assert decoder.output.matrix is decoder.embedding.weight


def test_a_decoder_need_not_scale_its_embeddings():
    backbone = Backbone(D, depth=1, num_heads=1, causal=True)
    decoder = Decoder(backbone, vocab_size=V, pos_embed="none", scale_embedding=False).eval()
    ids, mask = torch.randint(V, (2, 3)), torch.ones(2, 3, dtype=torch.bool)
    expected = backbone.norm(backbone.run(decoder.embedding(ids), mask))
    torch.testing.assert_close(decoder.states(ids, mask), expected)
