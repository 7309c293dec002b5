"""What a model that writes looked at: the decoder's weights, the pictures by modality, the page and the command."""

import base64
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from dxn.cli import main
from dxn.data.targets import Target
from dxn.errors import UserError
from dxn.explain.alignment import looks_pictures
from dxn.explain.page import write_page
from dxn.models import (
    Backbone,
    Decoder,
    EarlyFusion,
    Generate,
    LateFusion,
    Model,
    Recurrent,
    RecurrentDecoder,
)
from dxn.models.attention import Memory
from dxn.tokenize import AudioAdapter, ImageAdapter, TargetTokenizer, TextAdapter
from dxn.tokens import Span, Tokens
from dxn.train import bundle, outcome
from dxn.train.bundle import Predictor
from dxn.train.outcome import draw_attention

B, L, H, T, M, D, V = 2, 3, 2, 5, 7, 12, 11
MASK = torch.tensor([[True] * 7, [True, True, True, False, False, True, False]])


def decoder_of(**options):
    torch.manual_seed(0)
    backbone = Backbone(D, depth=L, num_heads=H, causal=True, cross=True, **options)
    return Decoder(backbone, vocab_size=V, max_len=T).double().eval().requires_grad_(False)


def given():
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, V, (B, T), generator=draw)
    memory = Memory.of(torch.randn(B, M, D, generator=draw, dtype=torch.float64), MASK)
    return ids, torch.ones(B, T, dtype=torch.bool), memory


@pytest.mark.parametrize("options", [{}, {"score": "additive"}, {"norm_first": False, "score": "cosine"}], ids=str)
def test_the_looks_of_a_decoder_give_what_each_block_read(options):
    decoder = decoder_of(**options)
    ids, mask, memory = given()
    outputs = []
    hooks = [
        b.cross.register_forward_hook(lambda _, args, output: outputs.append(output)) for b in decoder.backbone.blocks
    ]
    looks = decoder.looks(ids, mask, memory)
    for hook in hooks:
        hook.remove()
    assert looks.shape == (B, L, H, T, M)
    torch.testing.assert_close(looks.sum(-1), torch.ones(B, L, H, T, dtype=torch.float64), rtol=0, atol=1e-12)
    assert bool((looks[1][..., ~MASK[1]] == 0).all())  # padding is not read
    for i, (block, output) in enumerate(zip(decoder.backbone.blocks, outputs, strict=True)):
        values = block.cross.memory(memory.x)[..., D:]
        for b in range(B):
            read = [looks[b, i, h] @ values[b][:, h * D // H : (h + 1) * D // H] for h in range(H)]
            torch.testing.assert_close(block.cross.proj(torch.cat(read, -1)), output[b], rtol=0, atol=1e-12)


def test_looking_leaves_the_decoder_as_it_was():
    decoder = decoder_of()
    ids, mask, memory = given()
    before = decoder(ids, mask, memory)
    looks = decoder.looks(ids, mask, memory)
    torch.testing.assert_close(decoder(ids, mask, memory), before, rtol=0, atol=0)
    assert not any(block.cross._forward_pre_hooks for block in decoder.backbone.blocks)
    # What is read for a token hangs on those up to it alone.
    torch.testing.assert_close(decoder.looks(ids[:, :3], mask[:, :3], memory), looks[..., :3, :], rtol=0, atol=1e-12)


def test_a_decoder_that_fails_is_left_without_hooks():
    decoder = decoder_of()
    ids, _, memory = given()
    longer = torch.cat([ids, ids], 1)
    with pytest.raises(ValueError, match=r"^this decoder reaches 5 tokens, got 10: raise max_len$"):
        decoder.looks(longer, torch.ones_like(longer, dtype=torch.bool), memory)
    assert not any(block.cross._forward_pre_hooks for block in decoder.backbone.blocks)


@pytest.mark.parametrize("options", [{"depth": L}, {"depth": 0, "cross": True}], ids=str)
def test_a_decoder_that_reads_nothing_has_no_looks(options):
    decoder = Decoder(Backbone(D, num_heads=H, causal=True, **options), vocab_size=V)
    ids, mask, memory = given()
    with pytest.raises(ValueError, match=r"^without blocks that read a memory there is nothing that it looks at$"):
        decoder.looks(ids, mask, memory)


SENTENCES = ["a red mug", "a bell", "red bell a mug"]
SAMPLE = {
    "text": "a red bell",
    "image": np.full((8, 8, 3), 200, dtype=np.uint8),
    "audio": (np.sin(np.arange(4000) / 9).astype(np.float32), 8000),
}
FILES = {"text": "alignment.png", "image": "cells.png", "audio": "time.png"}
MAX_LEN = 7


def writer_of(*, modalities=("text", "image", "audio"), backbone=None, decoder="transformer", fusion=None, beams=1):
    torch.manual_seed(0)
    adapters = {
        "text": TextAdapter(D, subwords="word").fit(SENTENCES),
        "image": ImageAdapter(D, patch_size=4, image_size=8),
        "audio": AudioAdapter(D, sample_rate=8000),
    }
    writing = TargetTokenizer(subwords="word", max_len=MAX_LEN)
    writing.fit(SENTENCES)
    if decoder == "transformer":
        blocks = Backbone(D, depth=2, num_heads=2, causal=True, cross=True)
        made = Decoder(blocks, vocab_size=writing.size, max_len=MAX_LEN)
    else:
        made = RecurrentDecoder(D, vocab_size=writing.size, max_len=MAX_LEN, attention=decoder == "attention")
    model = Model(
        {name: adapters[name] for name in modalities},
        fusion=fusion or EarlyFusion(D, modalities=modalities),
        backbone=backbone or Backbone(D, depth=2, num_heads=2),
        head=Generate(D, decoder=made, beams=beams),
    )
    return Predictor(model.eval(), Target("text", writing=writing))


def writing_of(predictor) -> TargetTokenizer:
    assert predictor.target.writing is not None
    return predictor.target.writing


def page_of(folder):
    text = (folder / "attention.html").read_text(encoding="utf-8")
    return json.loads(re.findall(r'id="data">(.*?)</script>', text, re.S)[0])


@pytest.fixture
def unsaved(monkeypatch):
    """Figures are made but not painted, which takes most of the time."""
    for module in ("alignment", "attention"):
        monkeypatch.setattr(f"dxn.explain.{module}.save", lambda figure, path: None)


@pytest.mark.parametrize(
    ("decoder", "beams", "shown"),
    [("transformer", 1, ("text",)), ("transformer", 3, ("audio",)), ("attention", 3, ("text", "image"))],
    ids=str,
)
def test_what_was_read_is_drawn_by_modality(tmp_path, unsaved, decoder, beams, shown):
    predictor = writer_of(decoder=decoder, beams=beams)
    sample = {name: SAMPLE[name] for name in shown}
    totals, written, notes = draw_attention(predictor, sample, tmp_path / "new")
    assert notes == [f"answer: {predictor.predict(**sample)['prediction']}"]
    assert sum(totals.values()) == pytest.approx(1, abs=1e-5)
    assert {name for name, share in totals.items() if share > 0} == set(shown)
    names = [path.name for path in written]
    assert names[: len(shown)] == [FILES[name] for name in shown]
    assert {"heads.png", "shares.png", "attention.html"} < set(names)


def test_each_picture_of_what_was_read_can_be_opened(tmp_path):
    _, written, _ = draw_attention(writer_of(backbone=Recurrent(D)), SAMPLE, tmp_path)
    for path in written[:3]:
        with Image.open(path) as picture:
            assert picture.size[0] > 100


ENCODERS = {
    "gru": (lambda: {"backbone": Recurrent(D)}, "a recurrent encoder has no attention"),
    "no blocks": (lambda: {"backbone": Backbone(D, depth=0)}, "an encoder without blocks has no attention"),
    "late": (
        lambda: {"fusion": LateFusion(D, modalities=("text", "image", "audio"), pool="cls")},
        "with fusion=late or bottleneck the modalities never stand in one map; it needs early",
    ),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_without_a_map_leaves_what_the_answer_read(tmp_path, unsaved, name):
    options, reason = ENCODERS[name]
    totals, written, notes = draw_attention(writer_of(**options()), SAMPLE, tmp_path)
    assert [path.name for path in written] == ["alignment.png", "cells.png", "time.png", "attention.html"]
    assert notes[1:] == [f"no heads.png and no shares.png: {reason}"]
    assert sum(totals.values()) == pytest.approx(1, abs=1e-5)
    data = page_of(tmp_path)
    assert (data["depth"], data["heads"], data["maps"], data["rollout"]) == (0, 0, [], None)
    assert len(data["said"]["names"]) == len(base64.b64decode(data["said"]["maps"][0]["largest"])) / 4


@pytest.mark.parametrize("backbone", [Recurrent(D), Backbone(D, depth=0)], ids=["gru", "no blocks"])
def test_a_decoder_without_attention_is_refused(tmp_path, backbone):
    predictor = writer_of(backbone=backbone, decoder="last state")
    with pytest.raises(
        UserError, match=r"^attend: this model's decoder has no attention, only the encoder's last state$"
    ):
        draw_attention(predictor, SAMPLE, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_each_word_has_the_weights_with_which_it_was_chosen(tmp_path, unsaved, monkeypatch):
    """Row i is what was read when i words were given, so before word i was said; the end has its own."""
    predictor = writer_of(modalities=("text",))
    writing, decoder = writing_of(predictor), predictor.model.head.decoder
    said = writing.encode("a red mug").tolist()[1:-1]

    def looks(ids, mask, memory):
        assert ids.tolist() == [[writing.begin, *said]]
        found = torch.zeros(1, 2, 3, ids.shape[1], memory.x.shape[1])
        for row in range(ids.shape[1]):
            found[..., row, row % memory.x.shape[1]] = 1
        return found

    monkeypatch.setattr(decoder, "looks", looks)
    monkeypatch.setattr(predictor.model.head, "write", lambda *_, **__: [type("Said", (), {"ids": said})()])
    drawn = []
    monkeypatch.setattr(outcome, "looks_pictures", lambda *args: drawn.append(args) or [])
    _, _, notes = draw_attention(predictor, {"text": "a red bell"}, tmp_path)
    weights, words, *_ = drawn[0]
    assert notes[0] == "answer: a red mug"
    assert words == ["a", "red", "mug", "[EOS]"]
    assert weights.argmax(1).tolist() == [i % weights.shape[1] for i in range(4)]


def test_an_answer_that_was_cut_has_no_row_for_its_end(tmp_path, unsaved, monkeypatch):
    predictor = writer_of(modalities=("text",))
    writing = writing_of(predictor)
    ids = writing.encode("a red mug red bell a").tolist()[1:]
    for count, end in ((MAX_LEN - 2, ["[EOS]"]), (MAX_LEN - 1, [])):
        said = ids[:count]
        monkeypatch.setattr(
            predictor.model.head, "write", lambda *_, _ids=said, **__: [type("Said", (), {"ids": _ids})()]
        )
        draw_attention(predictor, {"text": "a red bell"}, tmp_path / str(count))
        assert page_of(tmp_path / str(count))["said"]["names"] == [*writing.pieces(said), *end]


def test_padding_and_columns_of_no_modality_are_not_drawn(tmp_path, monkeypatch):
    places = torch.tensor([[[0.0, 1], [2, 5], [torch.nan, torch.nan]]])
    cells = torch.tensor([[[0.0, 0, 5, 11], [5, 0, 10, 11]]])
    spans = (
        Span("class", 0, 1, torch.full((1, 1, 1), torch.nan)),
        Span("text", 1, 4, places),
        Span("image", 4, 6, cells),
    )
    mask = torch.tensor([[True, True, True, False, True, True]])
    tokens = Tokens(torch.zeros(1, 6, D), mask, spans)
    weights = np.array([[0.1, 0.2, 0.1, 0, 0.25, 0.35], [0, 0, 0.5, 0, 0.5, 0]])
    drawn = {}
    for name in ("alignment_picture", "cells_picture"):
        monkeypatch.setattr(f"dxn.explain.alignment.{name}", lambda *a, _name=name, **k: drawn.update({_name: (a, k)}))
    raw = {"text": "a cup", "image": torch.zeros(3, 10, 11, dtype=torch.uint8)}
    names = ["class 1", "a", "cup", "", "image 1", "image 2"]
    files = looks_pictures(weights, ["x", "y"], tokens, names, raw, tmp_path)
    assert [path.name for path in files] == ["alignment.png", "cells.png"]
    (looked, said, read, _), title = drawn["alignment_picture"]
    np.testing.assert_array_equal(looked, weights[:, 1:3])
    assert (said, read, title) == (["x", "y"], ["a", "cup"], {"title": "text: 40% of what was read"})
    (looked, _, image, boxes, _), title = drawn["cells_picture"]
    np.testing.assert_array_equal(looked, weights[:, 4:])
    assert (image.shape, boxes.shape, title) == ((10, 11, 3), (2, 4), {"title": "image: 55% of what was read"})


def test_one_modality_alone_needs_no_title(tmp_path, monkeypatch):
    tokens = Tokens(
        torch.zeros(1, 2, D), torch.ones(1, 2, dtype=torch.bool), (Span("text", 0, 2, torch.zeros(1, 2, 2)),)
    )
    titles = []
    monkeypatch.setattr("dxn.explain.alignment.alignment_picture", lambda *_, title: titles.append(title))
    looks_pictures(np.full((1, 2), 0.5), ["x"], tokens, ["a", "cup"], {"text": "a cup"}, tmp_path)
    assert titles == [""]


def unpacked(packed):
    largest = np.frombuffer(base64.b64decode(packed["largest"]), "<f4")
    steps = np.frombuffer(base64.b64decode(packed["steps"]), np.uint8)
    return steps.reshape(len(largest), -1) / 255 * largest[:, None]


def test_the_page_has_the_answers_weights_of_the_real_columns_block_by_block_and_head_by_head(tmp_path, monkeypatch):
    mask = torch.tensor([[True, False, True]])
    tokens = Tokens(torch.zeros(1, 3, D), mask, (Span("text", 0, 3, torch.zeros(1, 3, 2)),))
    looks = torch.rand(3, 2, 4, 3, generator=torch.Generator().manual_seed(0))
    said = ["x", "</script>", "y", "[EOS]"], looks
    assert write_page([], tokens, ["a", "", "b"], {"text": "a b"}, tmp_path / "attention.html", said=said) == []
    data = page_of(tmp_path)["said"]
    assert (data["names"], data["depth"], data["heads"], len(data["maps"])) == (said[0], 3, 2, 6)
    for packed, one in zip(data["maps"], looks.flatten(0, 1)[..., [0, 2]].numpy(), strict=True):
        np.testing.assert_allclose(unpacked(packed), one, rtol=0, atol=1 / 509)
    monkeypatch.setattr("dxn.explain.page.MAX_WEIGHTS", 47)
    notes = write_page([], tokens, ["a", "", "b"], {"text": "a b"}, tmp_path / "attention.html", said=said)
    assert notes == ["attention.html: of what the answer read, beyond 47 weights, only the mean"]
    data = page_of(tmp_path)["said"]
    assert (data["depth"], data["heads"], len(data["maps"])) == (1, 1, 1)
    mean = looks[..., [0, 2]].mean((0, 1)).numpy()
    np.testing.assert_allclose(unpacked(data["maps"][0]), mean, rtol=0, atol=1 / 509)


def test_what_counted_follows_the_answer_through_the_encoder(tmp_path, unsaved):
    """With an encoder that mixes nothing the rollout is what was read."""
    predictor = writer_of(modalities=("text", "image"))
    encoder = predictor.model.backbone
    captured = []
    hooks = [
        block.cross.register_forward_pre_hook(lambda own, args: captured.append(own.weights(*args)))
        for block in predictor.model.head.decoder.backbone.blocks
    ]
    for block in encoder.blocks:
        block.attn.weights = lambda x, bias=None, rotation=None: torch.eye(x.shape[1]).expand(1, 2, -1, -1)
    totals, _, _ = draw_attention(predictor, {name: SAMPLE[name] for name in ("text", "image")}, tmp_path)
    for hook in hooks:
        hook.remove()
    last = torch.stack([one for one in captured if one.shape[2] == max(c.shape[2] for c in captured)]).mean((0, 1, 2))
    data = page_of(tmp_path)
    rows = len(data["said"]["names"])
    read = last[:rows].mean(0)
    assert totals["text"] == pytest.approx(float(read[:3].sum()), abs=1e-5)
    assert totals["image"] == pytest.approx(float(read[3:].sum()), abs=1e-5)


def test_the_command_prints_the_answer(tmp_path, unsaved, capsys):
    predictor = writer_of(modalities=("text",))
    parts = {
        "adapters": {"text": {"_target_": "dxn.tokenize.TextAdapter", "dim": D, "subwords": "word"}},
        "fusion": {"_target_": "dxn.models.EarlyFusion", "dim": D, "modalities": ["text"]},
        "backbone": {"_target_": "dxn.models.Backbone", "dim": D, "depth": 2, "num_heads": 2},
        "head": {
            "_target_": "dxn.models.Generate",
            "dim": D,
            "decoder": {
                "_target_": "dxn.models.Decoder",
                "vocab_size": writing_of(predictor).size,
                "max_len": MAX_LEN,
                "backbone": {
                    "_target_": "dxn.models.Backbone",
                    "dim": D,
                    "depth": 2,
                    "num_heads": 2,
                    "causal": True,
                    "cross": True,
                },
            },
        },
    }
    bundle.save(tmp_path / "model", model=predictor.model, parts=parts, target=predictor.target, card="")
    assert main(["attend", f"run={tmp_path / 'model'}", "input.text=a red bell", f"output={tmp_path / 'looked'}"]) == 0
    printed = capsys.readouterr().out
    assert f"answer: {predictor.predict(text='a red bell')['prediction']}" in printed
    assert "alignment.png, heads.png, shares.png, arcs.png, attention.html" in " ".join(printed.split())
