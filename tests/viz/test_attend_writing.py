"""What a model that writes attends to: the decoder's weights, and the page."""

import base64
import functools
import json
import re

import numpy as np
import pytest
import torch

from dxn.cli import main
from dxn.config.model_plan import ModelPlan
from dxn.core.errors import UserError
from dxn.models import (
    Backbone,
    BlockOptions,
    Decoder,
    EarlyFusion,
    Hypothesis,
    LateFusion,
    Memory,
    MultimodalModel,
    NormOptions,
    Recurrent,
    RecurrentDecoder,
)
from dxn.runs.predictor.attention import draw_attention
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.saved import model_folder
from dxn.tasks import Generate
from dxn.tokenize import AudioAdapter, ImageAdapter, TextAdapter
from dxn.tokenize.text.options import TokenizerOptions

B, L, H, T, M, D, V = 2, 3, 2, 5, 7, 12, 11
MASK = torch.tensor([[True] * 7, [True, True, True, False, False, True, False]])


# The weights of a decoder


def make_decoder(**options):
    torch.manual_seed(0)
    backbone = Backbone(D, depth=L, num_heads=H, causal=True, cross=True, **options)
    decoder = Decoder(backbone, vocab_size=V, max_len=T)
    return decoder.double().eval().requires_grad_(False)


def make_inputs():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, V, (B, T), generator=generator)
    x = torch.randn(B, M, D, generator=generator, dtype=torch.float64)
    return ids, torch.ones(B, T, dtype=torch.bool), Memory(x, MASK[:, None, None])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block": BlockOptions(score="additive")},
        {"block": BlockOptions(score="cosine"), "norm": NormOptions(place="post")},
    ],
    ids=["plain", "additive", "cosine"],
)
def test_the_cross_attention_weights_reproduce_the_output_of_each_block(options):
    decoder = make_decoder(**options)
    ids, mask, memory = make_inputs()
    outputs = []
    hooks = [
        block.cross.register_forward_hook(lambda _, args, output: outputs.append(output))
        for block in decoder.backbone.blocks
    ]
    weights = decoder.cross_attention_weights(ids, mask, memory)
    for hook in hooks:
        hook.remove()
    assert weights.shape == (B, L, H, T, M)
    ones = torch.ones(B, L, H, T, dtype=torch.float64)
    torch.testing.assert_close(weights.sum(-1), ones, rtol=0, atol=1e-12)
    assert bool((weights[1][..., ~MASK[1]] == 0).all())  # padding is not read
    width = D // H
    for i, (block, output) in enumerate(zip(decoder.backbone.blocks, outputs, strict=True)):
        values = block.cross.memory(memory.x)[..., D:]
        for b in range(B):
            heads = [weights[b, i, h] @ values[b][:, h * width : (h + 1) * width] for h in range(H)]
            expected = block.cross.proj(torch.cat(heads, -1))
            rows = output.unflatten(0, (B, T))
            torch.testing.assert_close(expected, rows[b], rtol=0, atol=1e-12)


def has_hooks(decoder):
    return any(block.cross._forward_pre_hooks for block in decoder.backbone.blocks)


def test_reading_the_weights_does_not_change_the_decoder():
    decoder = make_decoder()
    ids, mask, memory = make_inputs()
    before = decoder(ids, mask, memory)
    weights = decoder.cross_attention_weights(ids, mask, memory)
    torch.testing.assert_close(decoder(ids, mask, memory), before, rtol=0, atol=0)
    assert not has_hooks(decoder)
    # What is read for a token depends on the tokens up to it only.
    shorter = decoder.cross_attention_weights(ids[:, :3], mask[:, :3], memory)
    torch.testing.assert_close(shorter, weights[..., :3, :], rtol=0, atol=1e-12)


def test_a_decoder_that_fails_keeps_no_hooks():
    decoder = make_decoder()
    ids, _, memory = make_inputs()
    longer = torch.cat([ids, ids], 1)
    message = "^a sequence of 10 tokens is longer than max_len=5: raise max_len$"
    with pytest.raises(ValueError, match=message):
        decoder.cross_attention_weights(longer, torch.ones_like(longer, dtype=torch.bool), memory)
    assert not has_hooks(decoder)


@pytest.mark.parametrize("options", [{"depth": L}, {"depth": 0, "cross": True}], ids=str)
def test_a_decoder_that_reads_nothing_has_no_weights(options):
    decoder = Decoder(Backbone(D, num_heads=H, causal=True, **options), vocab_size=V)
    ids, mask, memory = make_inputs()
    message = "^this decoder has no cross-attention, so there are no weights to show$"
    with pytest.raises(ValueError, match=message):
        decoder.cross_attention_weights(ids, mask, memory)


# The page

INPUTS = ("text", "image", "audio")
SENTENCES = ["a red mug", "a bell", "red bell a mug"]
SAMPLE = {
    "text": "a red bell",
    "image": np.full((8, 8, 3), 200, dtype=np.uint8),
    "audio": (np.sin(np.arange(4000) / 9).astype(np.float32), 8000),
}
MAX_LEN = 7


def decoder_of(kind):
    if kind == "transformer":
        blocks = Backbone(D, depth=2, num_heads=2, causal=True, cross=True)
        return functools.partial(Decoder, blocks, max_len=MAX_LEN)
    return functools.partial(RecurrentDecoder, D, max_len=MAX_LEN, attention=kind == "attention")


def make_writer(*, inputs=INPUTS, backbone=None, decoder="transformer", fusion=None, beams=1):
    torch.manual_seed(0)
    words = TokenizerOptions(kind="word")
    available = {
        "text": TextAdapter(D, tokenizer=words).fit(SENTENCES),
        "image": ImageAdapter(D, patch_size=4, image_size=8),
        "audio": AudioAdapter(D, sample_rate=8000),
    }
    adapters = {name: available[name] for name in inputs}
    task = Generate(decoder=decoder_of(decoder), tokenizer=words, max_len=MAX_LEN, beams=beams)
    task.target.bind(adapters)
    task.target.fit(SENTENCES)
    fusion = fusion or EarlyFusion(D, inputs=inputs)
    model = MultimodalModel(
        adapters,
        inputs={name: name for name in inputs},
        fusion=fusion,
        backbone=backbone or Backbone(D, depth=2, num_heads=2),
        head=task.make_head(D, fusion.width, adapters),
    )
    return Predictor(model.eval(), task)


def page_of(folder):
    text = (folder / "attention.html").read_text(encoding="utf-8")
    return json.loads(re.findall(r'application/json">(.*?)</script>', text, re.S)[0])


@pytest.mark.parametrize(
    ("decoder", "beams", "shown"),
    [
        ("transformer", 1, ("text",)),
        ("transformer", 3, ("audio",)),
        ("attention", 3, ("text", "image")),
    ],
    ids=str,
)
def test_the_answer_and_what_it_read_of_each_input_is_drawn(tmp_path, decoder, beams, shown):
    predictor = make_writer(decoder=decoder, beams=beams)
    sample = {name: SAMPLE[name] for name in shown}
    shares, notes = draw_attention(predictor, sample, tmp_path / "new")
    assert notes == [f"answer: {predictor.predict(**sample)['prediction']}"]
    assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
    assert {name for name, share in shares.items() if share > 0} == set(shown)
    written = page_of(tmp_path / "new")["written"]
    assert written["names"] and len(written["maps"]) == written["depth"] * written["heads"]


ENCODERS = {
    "gru": (lambda: {"backbone": Recurrent(D)}, "a recurrent encoder has no attention"),
    "no blocks": (
        lambda: {"backbone": Backbone(D, depth=0)},
        "an encoder without blocks has no attention",
    ),
    "late": (
        lambda: {"fusion": LateFusion(D, inputs=INPUTS, pool="cls")},
        "the inputs are in one attention map only with fusion=early",
    ),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_without_a_map_leaves_the_attention_of_the_answer(tmp_path, name):
    make_options, reason = ENCODERS[name]
    shares, notes = draw_attention(make_writer(**make_options()), SAMPLE, tmp_path)
    assert notes[1:] == [f"no attention of the encoder: {reason}"]
    assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
    data = page_of(tmp_path)
    assert (data["depth"], data["heads"], data["maps"], data["rollout"]) == (0, 0, [], None)
    written = data["written"]
    assert len(written["names"]) == len(base64.b64decode(written["maps"][0]["largest"])) / 4


@pytest.mark.parametrize("backbone", [Recurrent(D), Backbone(D, depth=0)], ids=["gru", "no blocks"])
def test_a_decoder_without_attention_is_refused(tmp_path, backbone):
    predictor = make_writer(backbone=backbone, decoder="last state")
    message = "^attention: this decoder has no attention, so there are no weights to show$"
    with pytest.raises(UserError, match=message):
        draw_attention(predictor, SAMPLE, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def answer_with(monkeypatch, predictor, ids):
    """Let the task write these ids."""
    monkeypatch.setattr(predictor.task, "search", lambda *_, **__: [Hypothesis(list(ids), 0.0)])


def test_each_word_has_the_weights_with_which_it_was_chosen(tmp_path, monkeypatch):
    """Row i is what was read when i words were there, before word i; the end has its own row."""
    predictor = make_writer(inputs=("text",))
    tokenizer = predictor.task.tokenizer
    written = tokenizer.encode("a red mug").tolist()[1:-1]

    def weights(ids, mask, memory):
        assert ids.tolist() == [[*tokenizer.begin_ids, *written]]
        result = torch.zeros(1, 2, 3, ids.shape[1], memory.x.shape[1])
        for row in range(ids.shape[1]):
            result[..., row, row % memory.x.shape[1]] = 1
        return result

    monkeypatch.setattr(predictor.model.head.decoder, "cross_attention_weights", weights)
    answer_with(monkeypatch, predictor, written)
    _, notes = draw_attention(predictor, {"text": "a red bell"}, tmp_path)
    page = page_of(tmp_path)["written"]
    assert notes[0] == "answer: a red mug"
    assert page["names"] == ["a", "red", "mug", "[EOS]"]
    steps = np.frombuffer(base64.b64decode(page["maps"][0]["steps"]), np.uint8).reshape(4, -1)
    assert steps.argmax(1).tolist() == [i % steps.shape[1] for i in range(4)]


def test_an_answer_that_was_cut_has_no_row_for_its_end(tmp_path, monkeypatch):
    predictor = make_writer(inputs=("text",))
    tokenizer = predictor.task.tokenizer
    ids = tokenizer.encode("a red mug red bell a").tolist()[1:]
    for count, end in ((MAX_LEN - 2, ["[EOS]"]), (MAX_LEN - 1, [])):
        answer_with(monkeypatch, predictor, ids[:count])
        draw_attention(predictor, {"text": "a red bell"}, tmp_path / str(count))
        names = page_of(tmp_path / str(count))["written"]["names"]
        assert names == [*tokenizer.text_tokenizer.pieces(ids[:count]), *end]


def test_the_shares_follow_the_answer_through_the_encoder(tmp_path):
    """With an encoder that mixes nothing, the shares are what the decoder read."""
    predictor = make_writer(inputs=("text", "image"))
    captured = []
    hooks = [
        block.cross.register_forward_pre_hook(
            lambda m, args: captured.append(m.weights(args[0], args[1][0], *args[2:]))
        )
        for block in predictor.model.head.decoder.backbone.blocks
    ]
    for block in predictor.model.backbone.blocks:
        block.attn.weights = lambda x, group: torch.eye(x.shape[0]).expand(1, 2, -1, -1)
    sample = {name: SAMPLE[name] for name in ("text", "image")}
    shares, _ = draw_attention(predictor, sample, tmp_path)
    for hook in hooks:
        hook.remove()
    # The last pass has all tokens of the answer; the search before it has one at a time.
    longest = max(weights.shape[2] for weights in captured)
    whole = [weights for weights in captured if weights.shape[2] == longest]
    rows = len(page_of(tmp_path)["written"]["names"])
    read = torch.stack(whole).mean((0, 1, 2))[:rows].mean(0)
    assert shares["text"] == pytest.approx(float(read[:3].sum()), abs=1e-5)
    assert shares["image"] == pytest.approx(float(read[3:].sum()), abs=1e-5)


def test_the_command_prints_the_answer_and_the_files(tmp_path, capsys):
    """The same model from its folder, as a user runs it."""
    predictor = make_writer(inputs=("text",))
    words = {"kind": "word"}
    encoder = {"_target_": "dxn.models.Backbone", "dim": D, "depth": 2, "num_heads": 2}
    decoder = {
        "_target_": "dxn.models.Decoder",
        "_partial_": True,
        "max_len": MAX_LEN,
        "backbone": {**encoder, "causal": True, "cross": True},
    }
    options = {"_target_": "dxn.tokenize.text.options.TokenizerOptions", **words}
    text = {"_target_": "dxn.tokenize.TextAdapter", "dim": D, "tokenizer": options}
    head = {
        "_target_": "dxn.tasks.Generate",
        "decoder": decoder,
        "tokenizer": options,
        "max_len": MAX_LEN,
        "beams": 1,
    }
    nodes = {
        "inputs": {"text": {"modality": "text", "column": "text", "adapter": "text"}},
        "target": "target",
        "adapters": {"text": text},
        "fusion": {"_target_": "dxn.models.EarlyFusion", "dim": D, "inputs": ["text"]},
        "backbone": encoder,
        "head": head,
    }
    folder = tmp_path / "model"
    plan = ModelPlan.model_validate(nodes)
    model_folder.save(folder, model=predictor.model, plan=plan, task=predictor.task, card="")
    output = tmp_path / "drawn"
    assert main(["attend", f"run={folder}", "input.text=a red bell", f"output={output}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"answer: {predictor.predict(text='a red bell')['prediction']}" in printed
    assert f"written: {output / 'attention.html'}; open it in a browser" in printed
