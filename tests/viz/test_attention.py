"""What a model attends to: the recorded maps, their rollout, the pictures and the command."""

import numpy as np
import pytest
import torch
from helpers.drawing import (
    NAN,
    Shown,
    audio,
    cut_off,
    headline,
    image,
    pixels_of,
    text,
    title,
)
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
from dxn.runs.attend import draw_attention
from dxn.runs.predictor.predictor import Predictor
from dxn.tasks import Classify
from dxn.tokenize import AudioAdapter, ImageAdapter, TextAdapter
from dxn.tokenize.text.options import TokenizerOptions
from dxn.viz.attention import (
    across_picture,
    arcs_picture,
    heads_picture,
    shares_picture,
    word_pictures,
)
from dxn.viz.rollout import recorded, rollout, token_shares
from dxn.viz.sample import InputTokens, SampleView, describe_sample

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


class Named(SampleView):
    """A sample whose columns have these names."""

    def __init__(self, tokens, names):
        super().__init__(tokens, {})
        self.__dict__["names"] = names


def parts_of(**counts):
    return spans_of(*((name, name, [(NAN,)] * count) for name, count in counts.items()))


def test_all_maps_have_the_same_color_scale(tmp_path, drawn):
    """One head attends to single tokens, and its map alone has strong colors."""
    n = 5
    maps = [torch.full((1, 2, n, n), 1 / n) for _ in range(2)]
    maps[0][0, 1] = torch.eye(n)
    names = [f"t{i}" for i in range(n)]
    view = Named(parts_of(text=n), names)
    heads_picture(view, maps, tmp_path / "heads.png", about="answer: 7")
    *axes, _ = drawn[0].axes  # the last one is the color bar
    scales = {(axis.images[0].norm.vmin, axis.images[0].norm.vmax) for axis in axes}
    assert scales == {(0, 1)}
    # A square root: uniform attention is visible, and far from the strongest color.
    assert axes[0].images[0].norm(1 / n) == pytest.approx(n**-0.5)
    shown = [axis.images[0].get_array().max() for axis in axes]
    assert shown == pytest.approx([1 / n, 1, 1 / n, 1 / n])
    assert headline(drawn[0]).endswith("answer: 7; all maps have the same color scale")
    assert cut_off(drawn[0]) < 0.01


@pytest.mark.parametrize(("n", "labels"), [(12, 12), (300, 25)])
def test_maps_are_labelled_with_tokens(tmp_path, drawn, n, labels):
    names = [f"word {i}" for i in range(n - 1)]
    maps = [torch.full((1, 1, n, n), 1 / n)]
    view = Named(parts_of(cls=1, text=n - 1), ["cls", *names])
    heads_picture(view, maps, tmp_path / "h.png")
    ticks = [label.get_text() for label in drawn[0].axes[0].get_xticklabels()]
    assert ticks[:2] == ["cls", "text: word 0"]
    assert labels - 3 <= len(ticks) <= labels + 1
    assert cut_off(drawn[0]) < 0.01


def colored(pixels):
    return pixels.max(2) - pixels.min(2) > 60


@pytest.mark.parametrize(("reader", "read", "above"), [(4, 1, True), (1, 4, False)])
def test_an_arc_to_an_earlier_word_is_above_the_words(tmp_path, reader, read, above):
    weights = torch.zeros(1, 1, 5, 5)
    weights[0, 0, reader, read] = 1
    arcs_picture([weights], ["a", "cup", "of", "$5$", "tea"], tmp_path / "arcs.png")
    pixels = pixels_of(tmp_path / "arcs.png")
    rows = colored(pixels)[:-40].any(1).nonzero()[0]  # the legend is below
    middle = pixels.shape[0] // 2
    assert bool((rows < middle).all() if above else (rows > middle - 30).all())


def test_many_heads_are_drawn_as_their_mean_and_few_each_in_its_color(tmp_path):
    maps = [torch.zeros(1, 11, 3, 3), torch.zeros(1, 2, 3, 3)]
    has_orange = []
    for i, weights in enumerate(maps):
        weights[:, 0, 0, 1] = weights[:, 1, 2, 1] = 1.0
        arcs_picture([weights], ["x", "y", "z"], tmp_path / f"{i}.png")
        pixels = pixels_of(tmp_path / f"{i}.png")[30:-40]
        has_orange.append(bool(((pixels[..., 0] > 200) & (pixels[..., 2] < 120)).any()))
    assert has_orange == [False, True]  # only two heads have the orange of the second head


def long_text(n, *, first=(NAN, NAN)):
    """A text of n tokens, the first one special, and an image of two patches."""
    characters = [first, *((i, i + 1) for i in range(1, n))]
    cells = [(0.0, 0, 5, 11), (5, 0, 10, 11)]
    tokens = spans_of(("text", "text", characters), ("image", "image", cells))
    inputs = {
        "text": text("x" * n, [f"w{i}" for i in range(n)]),
        "image": image(torch.full((3, 10, 11), 220, dtype=torch.uint8)),
    }
    return tokens, inputs


def uniform(n):
    return [torch.full((1, H, n, n), 1 / n)]


def test_a_long_text_has_no_arcs_and_a_limited_number_of_copies(tmp_path):
    n = 41
    tokens, inputs = long_text(n)
    written, notes = word_pictures(SampleView(tokens, inputs), uniform(n + 2), tmp_path)
    assert [path.name for path in written] == ["across.png"]
    assert notes == [
        "no arcs.png: it has room for 40 tokens, the input has 41",
        "across.png: the first 16 of 40 tokens",
    ]


def test_an_input_without_words_has_no_word_pictures(tmp_path):
    tokens, inputs = long_text(3)
    del inputs["text"]
    assert word_pictures(SampleView(tokens, inputs), uniform(5), tmp_path) == ([], [])


def test_columns_without_a_name_are_no_words(tmp_path, monkeypatch):
    tokens = spans_of(("text", "text", [(0, 1), (1, 2), (0, 2)]))
    inputs = {"text": text("ab", ["a", "b"])}
    drawn = []
    monkeypatch.setattr(
        "dxn.viz.attention.arcs_picture",
        lambda maps, words, path, about: drawn.append(words),
    )
    word_pictures(SampleView(tokens, inputs), uniform(3), tmp_path)
    assert drawn == [["a", "b"]]


def test_several_texts_have_a_file_each(tmp_path):
    tokens = spans_of(
        ("title", "text", [(0, 1), (1, 2)]),
        ("body", "text", [(0, 3)]),
        ("price", "gauge", [(0,)]),
    )
    inputs = {
        "title": text("ab", ["a", "b"]),
        "body": text("cup", ["cup"]),
        "price": Shown("gauge", 3.5, None),
    }
    written, notes = word_pictures(SampleView(tokens, inputs), uniform(4), tmp_path)
    assert [path.name for path in written] == [
        "title_arcs.png",
        "title_across.png",
        "body_arcs.png",
        "body_across.png",
    ]
    assert notes == [] and all(path.exists() for path in written)


def test_the_copies_of_an_input_have_the_same_color_scale(tmp_path, drawn):
    cells = np.array([[0.0, 0, 5, 11], [5, 0, 10, 11]])
    part = InputTokens("image", image(torch.zeros(3, 10, 11)), np.array([1, 2]), cells)
    weights = np.array([[0, 0, 0.8], [0.5, 0.1, 0]])
    across_picture(weights, ["cup", "tea"], [part], tmp_path / "a.png")
    cup, tea, bar = drawn[0].axes
    assert (cup.get_title(), tea.get_title()) == ("cup: 80%", "tea: 10%")
    assert bar.get_ylim() == (0, 0.8)
    middle = [axis.images[0].get_array()[-5, 0] for axis in (cup, tea)]
    assert middle[0][0] - middle[0][2] > 0.3 > middle[1][0] - middle[1][2]
    assert cut_off(drawn[0]) < 0.01


def test_each_input_has_its_share_and_its_color_bar(tmp_path, drawn):
    tokens = spans_of(
        ("class", "class", [(NAN,)]),
        ("front", "image", [(0, 0, 2, 2)]),
        ("back", "image", [(0, 0, 2, 2)]),
    )
    picture = image(torch.zeros(1, 2, 2, dtype=torch.uint8))
    inputs = {"front": picture, "back": picture}
    shares = np.array([0.25, 0.5, 0.25])
    view = SampleView(tokens, inputs)
    shares_picture(view, shares, tmp_path / "shares.png", about="answer: 7")
    front, back, first, second = drawn[0].axes
    assert title(front) == "front: 50% of the attention"
    assert title(back) == "back: 25% of the attention"
    assert len(front.images) == 2  # the original is beside the colored image
    # A single patch has the mean share, which is half of the scale.
    assert (first.get_ylim(), second.get_ylim()) == ((0, 1), (0, 0.5))
    assert first.get_title(loc="right") == "% of all,\nper patch"
    expected = "What the model attends to | answer: 7; each input has its own color scale"
    assert headline(drawn[0]) == expected
    assert cut_off(drawn[0]) < 0.01


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
    drawn = draw_attention(predictor, {name: SAMPLE[name] for name in shown}, folder)
    answer = predictor.predict(**{name: SAMPLE[name] for name in shown})
    likely = answer["probabilities"][answer["prediction"]]
    assert drawn.notes == [f"answer: {answer['prediction']} ({likely:.0%})"]
    assert sum(drawn.shares.values()) == pytest.approx(1, abs=1e-5)
    counted = {name for name, share in drawn.shares.items() if share > 0}
    assert counted == {*shown, *(["class"] if pool == "cls" else [])}
    expected = ["heads.png", "shares.png", *(["arcs.png"] if "text" in shown else [])]
    expected += ["across.png"] if "text" in shown and len(shown) > 1 else []
    assert [path.name for path in drawn.files] == [*expected, "attention.html"]
    for name in expected:
        with Image.open(folder / name) as picture:
            assert picture.size[0] > 300


def test_pictures_of_an_earlier_call_are_removed_and_other_files_are_kept(tmp_path):
    predictor = make_predictor(EarlyFusion(D, inputs=INPUTS))
    draw_attention(predictor, SAMPLE, tmp_path)
    Image.new("RGB", (3, 3)).save(tmp_path / "red_cells.png")
    (tmp_path / "time.png").write_text("no picture")
    draw_attention(predictor, {"audio": SAMPLE["audio"]}, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        *("heads.png", "shares.png", "attention.html", ".attend.json"),
        *("red_cells.png", "time.png"),
    }


def test_the_model_and_the_sample_are_named(tmp_path, drawn):
    predictor = make_predictor(EarlyFusion(D, inputs=INPUTS))
    Image.new("RGB", (8, 8)).save(tmp_path / "mug.png")
    sample = {"text": "a red bell", "image": str(tmp_path / "mug.png")}
    draw_attention(predictor, sample, tmp_path / "out", model_name="outputs/x")
    expected = "text: “a red bell”; image: mug.png; model: outputs/x"
    assert all(expected in headline(figure) for figure in drawn)
    assert all("answer: " in headline(figure) for figure in drawn)
    page = (tmp_path / "out" / "attention.html").read_text(encoding="utf-8")
    assert '"model": "outputs/x"' in page


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
