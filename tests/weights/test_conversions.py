"""Conversions of tensors, and an encoder-decoder that is described by them."""

import pytest
import torch
from helpers.peers import cases
from helpers.reference import lively_writer
from tokenizers import Tokenizer, models, pre_tokenizers

import dxn
from dxn.models import Memory
from dxn.weights import Architecture, Family
from dxn.weights import families as registry
from dxn.weights.conversions import (
    blocks,
    copied,
    stacked,
    transposed,
)

T = cases.T
pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
D, HEADS, KV_HEADS, HEAD_DIM = 11, 6, 2, 10
ROWS = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM)

SOURCES = {
    "copied": (copied("a"), [(5, 3)]),
    "transposed": (transposed("a"), [(5, 3)]),
    "stacked, equal rows": (stacked("a", "b"), [(5, 3), (5, 3)]),
    "stacked, grouped heads": (stacked("q", "k", "v", rows=ROWS), [(n, D) for n in ROWS]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_inverse_of_a_conversion_returns_the_tensors_of_the_checkpoint(name):
    source, shapes = SOURCES[name]
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    inverse = source.invert(source.convert(*tensors))
    assert len(source.names) == len(inverse)
    for tensor, again in zip(tensors, inverse, strict=True):
        torch.testing.assert_close(again, tensor, rtol=0, atol=1e-15)
    moved = sorted(torch.cat([t.flatten() for t in tensors]).tolist())
    assert source.moves == (sorted(source.convert(*tensors).flatten().tolist()) == moved)


def test_the_rows_of_grouped_heads_apply_to_the_layers_of_that_name():
    names = {"attn.qkv": ("q_proj", "k_proj", "v_proj"), "mlp.up": ("up_proj", "gate_proj")}
    found = blocks(names, prefix="layers.{i}", depth=2, rows={"attn.qkv": ROWS})
    source = found["backbone.blocks.1.attn.qkv.weight"]
    assert source.names == tuple(f"layers.1.{name}.weight" for name in names["attn.qkv"])
    assert [len(part) for part in source.invert(torch.zeros(sum(ROWS), D))] == list(ROWS)
    halves = found["backbone.blocks.0.mlp.up.weight"].invert(torch.zeros(14, D))
    assert [len(part) for part in halves] == [7, 7]


# An encoder-decoder: Marian, as a family of another package would describe it

VOCAB, WIDTH, BEGIN, END = 31, 24, 0, 1
BLOCK = {
    "attn.qkv": tuple(f"self_attn.{name}_proj" for name in "qkv"),
    "attn.proj": "self_attn.out_proj",
    "attn_norm": "self_attn_layer_norm",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
    "mlp_norm": "final_layer_norm",
}
DECODER_BLOCK = {
    **BLOCK,
    "cross.query": "encoder_attn.q_proj",
    "cross.memory": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.proj": "encoder_attn.out_proj",
    "cross_norm": "encoder_attn_layer_norm",
}


def architecture(checkpoint):
    config = checkpoint.config
    backbone = {
        "depth": config["encoder_layers"],
        "num_heads": config["encoder_attention_heads"],
        "norm": {"place": "post"},
    }
    return Architecture(
        dim=config["d_model"],
        adapters={"text": {"pos_embed": "sinusoidal", "embedding": {"scale": True}}},
        backbone=backbone,
        head={"share_tokenizer": True, "max_len": 40, "beams": 1},
        decoder={"max_len": 41, "backbone": {**backbone, "depth": config["decoder_layers"]}},
        task="generate",
    )


def tensor_map(checkpoint, architecture):
    decoder = "head.decoder.backbone.blocks"
    depths = architecture.backbone["depth"], architecture.decoder["backbone"]["depth"]
    return {
        "adapters.text.embedding.weight": copied("model.shared.weight"),
        **blocks(BLOCK, prefix="model.encoder.layers.{i}", depth=depths[0]),
        **blocks(DECODER_BLOCK, prefix="model.decoder.layers.{i}", depth=depths[1], to=decoder),
    }


MARIAN = Family(
    "Marian of a test",
    lambda checkpoint: checkpoint.config.get("model_type") == "marian",
    architecture,
    tensor_map,
    ignored=(r"final_logits_bias", r"lm_head\.", r".*embed_(tokens|positions)\."),
)


def test_a_family_with_a_decoder_has_the_logits_of_transformers(tmp_path, monkeypatch):
    torch.manual_seed(0)
    config = T.MarianConfig(
        vocab_size=VOCAB,
        d_model=WIDTH,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=4 * WIDTH,
        decoder_ffn_dim=4 * WIDTH,
        max_position_embeddings=64,
        activation_function="gelu",
        scale_embedding=True,
        pad_token_id=BEGIN,
        decoder_start_token_id=BEGIN,
        bos_token_id=BEGIN,
        eos_token_id=END,
        forced_eos_token_id=None,
    )
    peer = lively_writer(T.MarianMTModel(config)).eval()
    peer.save_pretrained(tmp_path)
    words = {"<s>": BEGIN, "</s>": END, **{f"w{i}": i for i in range(2, VOCAB)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr(registry, "FAMILIES", [MARIAN])
    model = dxn.from_public(str(tmp_path), dtype="float32").model
    ids = torch.randint(2, VOCAB, (3, 7))
    mask = torch.arange(7) < torch.tensor([7, 1, 4])[:, None]
    text = {"ids": ids, "mask": mask, "coords": torch.zeros(3, 7, 2), "rows": torch.arange(3)}
    written = torch.randint(2, VOCAB, (3, 5))
    with torch.inference_mode():
        tokens, _ = model.encode(model.embed({"text": text, "#size": 3}))
        memory = Memory.from_tokens(tokens)
        logits = model.head.decoder(written, torch.ones_like(written, dtype=torch.bool), memory)
        expected = peer(ids, attention_mask=mask.long(), decoder_input_ids=written).logits
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    assert model.head.decoder.embedding is model.adapters["text"].embedding
