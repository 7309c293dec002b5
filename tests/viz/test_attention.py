"""What a model attends to: the recorded maps, their rollout, the names and the command."""

import numpy as np
import pytest
import torch
from helpers.drawing import NAN, Shown, audio, image, text
from PIL import Image

from dxn.cli import main
from dxn.core.errors import UserError
from dxn.core.tokens import Span, Tokens
from dxn.models import (
    Backbone,
    BlockOptions,
    BottleneckFusion,
    EarlyFusion,
    LateFusion,
    MultimodalModel,
    NormOptions,
    PositionOptions,
)
from dxn.runs.predictor.attention import draw_attention, joined_windows
from dxn.runs.predictor.predictor import Predictor
from dxn.tasks import Classify
from dxn.tokenize import AudioAdapter, ImageAdapter, TextAdapter
from dxn.tokenize.text.options import TokenizerOptions
from dxn.viz.rollout import recorded, rollout, token_shares
from dxn.viz.sample import SampleView, describe_sample

B, H, N, D, DEPTH = 2, 3, 5, 12, 2
MASK = torch.tensor([[True] * 5, [True, True, True, False, False]])


def make_backbone(**options):
    torch.manual_seed(0)
    backbone = Backbone(D, depth=DEPTH, num_heads=H, **options)
    return backbone.double().eval().requires_grad_(False)


def make_maps(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (B, H, N, N)
    return [
        torch.rand(shape, generator=generator, dtype=torch.float64).softmax(-1)
        for _ in range(DEPTH)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"position": PositionOptions(kind="rotary")},
        {"position": PositionOptions(kind="alibi")},
        {"causal": True},
        {"block": BlockOptions(qk_norm=True), "position": PositionOptions(windows=[1])},
        {"block": BlockOptions(score="additive")},
        {"block": BlockOptions(score="cosine"), "norm": NormOptions(place="post")},
    ],
    ids=["plain", "rotary", "alibi", "causal", "qk_norm and window", "additive", "cosine"],
)
def test_the_recorded_weights_reproduce_the_output_of_each_block(options):
    backbone = make_backbone(**options)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(B, N, D, dtype=torch.float64, generator=generator)
    inputs = []
    outputs = []

    def watch(_, args, output):
        inputs.append(args[0].unflatten(0, (B, N)))
        outputs.append(output.unflatten(0, (B, N)))

    hooks = [block.attn.register_forward_hook(watch) for block in backbone.blocks]
    with torch.no_grad(), recorded(backbone) as maps:
        result = backbone.run(x, MASK)
    for hook in hooks:
        hook.remove()
    assert [weights.shape for weights in maps] == [(B, H, N, N)] * DEPTH
    for block, weights, given, expected in zip(backbone.blocks, maps, inputs, outputs, strict=True):
        assert bool((weights[1, :, :3, 3:] == 0).all())  # padding is not read
        value = block.attn.qkv(given)[..., 2 * D :].unflatten(-1, (H, D // H)).transpose(1, 2)
        output = block.attn.proj((weights @ value).transpose(1, 2).flatten(2))
        torch.testing.assert_close(output[0], expected[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(output[1, :3], expected[1, :3], rtol=0, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(backbone.run(x, MASK)[MASK], result[MASK], rtol=0, atol=1e-12)
    assert len(maps) == DEPTH  # nothing is recorded after the context


def test_rollout_equals_its_formula():
    maps = make_maps()
    identity = torch.eye(N, dtype=torch.float64)
    expected = identity.expand(B, N, N)
    for weights in maps:
        rows = []
        for b in range(B):
            mixed = 0.5 * sum(weights[b, h] for h in range(H)) / H + 0.5 * identity
            rows.append(mixed @ expected[b])
        expected = torch.stack(rows)
    torch.testing.assert_close(rollout(maps), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(rollout(maps).sum(-1), torch.ones(B, N, dtype=torch.float64))


def test_tokens_that_read_only_themselves_stay_themselves():
    identity = torch.eye(N).expand(B, H, N, N)
    assert torch.equal(rollout([identity, identity]), torch.eye(N).expand(B, N, N))


@pytest.mark.parametrize("pool", ["mean", "max", "attention", "cls", "first", "last", "leading"])
def test_shares_sum_to_one_and_padding_has_none(pool):
    shares = token_shares(make_maps(), MASK, pool)
    torch.testing.assert_close(shares.sum(1), torch.ones(B, dtype=torch.float64))
    assert bool((shares[1, 3:] == 0).all()) and bool((shares[MASK] > 0).all())
    total = rollout(make_maps())[1, :, :3]
    row = {"cls": 0, "first": 0, "leading": 0, "last": 2}.get(pool)
    expected = total[:3].mean(0) if row is None else total[row]
    torch.testing.assert_close(shares[1, :3], expected / expected.sum(), rtol=0, atol=1e-12)


def spans_of(*parts):
    """Spans one after the other, of (name, modality, coords)."""
    spans = []
    start = 0
    for name, modality, coords in parts:
        coords = torch.tensor([coords], dtype=torch.float32)
        spans.append(Span(name, modality, start, start + coords.shape[1], coords))
        start += coords.shape[1]
    return Tokens(torch.zeros(1, start, D), torch.ones(1, start, dtype=torch.bool), tuple(spans))


def test_every_column_has_a_name():
    tokens = spans_of(
        ("title", "text", [(0, 2), (2, 5), (0, 5)]),
        ("class", "class", [(NAN,)]),
        ("audio", "audio", [(0.25, 0.5)]),
        ("front", "image", [(0, 0, 2, 2), (0, 2, 2, 4)]),
        ("price", "gauge", [(1,)]),
    )
    inputs = {
        "title": text("a cup", ["a", "cup"]),  # the third column is a run of two subwords
        "audio": audio(torch.zeros(4000), 8000),
        "front": image(torch.zeros(1, 2, 4)),
        "price": Shown("gauge", 3.5, None),
    }
    expected = ["a", "cup", "", "class 1", "0.25 s"]
    expected += ["row 1, col 1", "row 1, col 2", "price 1"]
    assert SampleView(tokens, inputs).names == expected


# The command

INPUTS = ("text", "image", "audio")
SAMPLE = {
    "text": "a red bell",
    "image": np.full((8, 8, 3), 200, dtype=np.uint8),
    "audio": (np.sin(np.arange(4000) / 9).astype(np.float32), 8000),
}


def make_predictor(fusion):
    torch.manual_seed(0)
    adapters = {
        "text": TextAdapter(D, tokenizer=TokenizerOptions(kind="word")).fit(
            ["a red mug", "a bell"]
        ),
        "image": ImageAdapter(D, patch_size=4, image_size=8),
        "audio": AudioAdapter(D, sample_rate=8000),
    }
    task = Classify()
    task.target.bind(adapters)
    task.target.fit(["a", "b"])
    head = task.make_head(D, fusion.width, adapters)
    inputs = {name: name for name in INPUTS}
    backbone = Backbone(D, depth=2, num_heads=2)
    model = MultimodalModel(adapters, inputs=inputs, fusion=fusion, backbone=backbone, head=head)
    return Predictor(model.eval(), task)


@pytest.mark.parametrize(
    ("pool", "shown"), [("mean", INPUTS), ("cls", ("text",)), ("cls", ("audio", "image"))]
)
def test_the_inputs_of_a_sample_are_drawn(tmp_path, pool, shown):
    predictor = make_predictor(EarlyFusion(D, inputs=INPUTS, pool=pool))
    folder = tmp_path / "new" / "folder"
    shares, notes = draw_attention(predictor, {name: SAMPLE[name] for name in shown}, folder)
    answer = predictor.predict(**{name: SAMPLE[name] for name in shown})
    likely = answer["probabilities"][answer["prediction"]]
    assert notes == [f"answer: {answer['prediction']} ({likely:.0%})"]
    assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
    counted = {name for name, share in shares.items() if share > 0}
    assert counted == {*shown, *(["class"] if pool == "cls" else [])}
    assert list(folder.iterdir()) == [folder / "attention.html"]


def test_the_model_and_the_sample_are_named(tmp_path):
    predictor = make_predictor(EarlyFusion(D, inputs=INPUTS))
    Image.new("RGB", (8, 8)).save(tmp_path / "mug.png")
    sample = {"text": "a red bell", "image": str(tmp_path / "mug.png")}
    draw_attention(predictor, sample, tmp_path / "out", model_name="outputs/x")
    page = (tmp_path / "out" / "attention.html").read_text(encoding="utf-8")
    assert '"model": "outputs/x"' in page
    assert '"sample": "text: “a red bell”; image: mug.png"' in page


@pytest.mark.parametrize("fusion", [LateFusion, BottleneckFusion])
def test_a_fusion_without_a_common_map_is_refused(tmp_path, fusion):
    predictor = make_predictor(fusion(D, inputs=INPUTS))
    message = r"^attention: the inputs are in one attention map only with fusion=early$"
    with pytest.raises(UserError, match=message):
        draw_attention(predictor, SAMPLE, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_command_needs_a_model(tmp_path, capsys):
    assert main(["attend", "input.text=hello", f"output={tmp_path / 'a'}"]) == 2
    assert "run=RUN" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_the_description_of_a_sample_has_its_first_inputs():
    sample = {f"column {i}": "1.5" for i in range(9)}
    assert describe_sample(sample).endswith("column 7: “1.5”; column 8: “1.5”")
    assert describe_sample({**sample, "column 9": "2"}).endswith("column 7: “1.5”; 2 more")


def test_windows_that_are_encoded_alone_have_one_map_of_all_columns():
    generator = torch.Generator().manual_seed(0)
    first, second = (
        [torch.rand(1, 2, n, n, generator=generator).softmax(-1) for _ in range(3)] for n in (5, 4)
    )
    maps = joined_windows([*first, *second], 3)
    assert [tuple(block.shape) for block in maps] == [(1, 2, 9, 9)] * 3
    total = rollout(maps)
    torch.testing.assert_close(total[:, :5, :5], rollout(first))
    torch.testing.assert_close(total[:, 5:, 5:], rollout(second))
    assert not total[:, :5, 5:].any()
