"""What a model looked at: the recorded maps, their rollout, the pictures and the command."""

import numpy as np
import pytest
import torch
from PIL import Image

from dxn.cli import main
from dxn.data.targets import Target
from dxn.errors import UserError
from dxn.explain.attention import (
    across_picture,
    arcs_picture,
    heads_picture,
    recorded,
    rollout,
    shares,
    token_names,
    word_pictures,
)
from dxn.models import Backbone, BottleneckFusion, Classify, EarlyFusion, LateFusion, Model
from dxn.tokenize import AudioAdapter, ImageAdapter, TextAdapter
from dxn.tokens import Span, Tokens
from dxn.train.bundle import Predictor
from dxn.train.outcome import draw_attention

B, H, N, D, DEPTH = 2, 3, 5, 12, 2
MASK = torch.tensor([[True] * 5, [True, True, True, False, False]])


def backbone_of(**options):
    torch.manual_seed(0)
    return Backbone(D, depth=DEPTH, num_heads=H, **options).double().eval().requires_grad_(False)


def maps_of(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.rand(B, H, N, N, generator=draw, dtype=torch.float64).softmax(-1) for _ in range(DEPTH)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"position": "rotary"},
        {"position": "alibi"},
        {"causal": True},
        {"qk_norm": True, "window": 1},
        {"score": "additive"},
        {"norm_first": False, "score": "cosine"},
    ],
    ids=str,
)
def test_the_recorded_weights_give_each_blocks_own_output(options):
    backbone = backbone_of(**options)
    x = torch.randn(B, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    inputs, outputs = [], []

    def watch(_, args, output):
        inputs.append(args[0])
        outputs.append(output)

    hooks = [block.attn.register_forward_hook(watch) for block in backbone.blocks]
    with torch.no_grad(), recorded(backbone) as maps:
        result = backbone.run(x, MASK)
    for hook in hooks:
        hook.remove()
    assert [one.shape for one in maps] == [(B, H, N, N)] * DEPTH
    for block, one, given, expected in zip(backbone.blocks, maps, inputs, outputs, strict=True):
        assert bool((one[1, :, :3, 3:] == 0).all())  # padding is not read
        value = block.attn.qkv(given)[..., 2 * D :].unflatten(-1, (H, D // H)).transpose(1, 2)
        again = block.attn.proj((one @ value).transpose(1, 2).flatten(2))
        torch.testing.assert_close(again[0], expected[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(again[1, :3], expected[1, :3], rtol=0, atol=1e-12)
    with torch.no_grad():
        assert torch.equal(backbone.run(x, MASK), result)
    assert len(maps) == DEPTH  # nothing more once the context is left


def test_rollout_is_its_formula():
    maps = maps_of()
    expected = torch.eye(N, dtype=torch.float64).expand(B, N, N)
    for one in maps:
        rows = []
        for b in range(B):
            mixed = 0.5 * sum(one[b, h] for h in range(H)) / H + 0.5 * torch.eye(N, dtype=torch.float64)
            rows.append(mixed @ expected[b])
        expected = torch.stack(rows)
    torch.testing.assert_close(rollout(maps), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(rollout(maps).sum(-1), torch.ones(B, N, dtype=torch.float64))


def test_tokens_that_read_only_themselves_stay_themselves():
    alone = torch.eye(N).expand(B, H, N, N)
    assert torch.equal(rollout([alone, alone]), torch.eye(N).expand(B, N, N))


@pytest.mark.parametrize("pool", ["mean", "max", "attention", "cls", "first", "last", "leading"])
def test_shares_add_up_and_padding_has_none(pool):
    found = shares(maps_of(), MASK, pool)
    torch.testing.assert_close(found.sum(1), torch.ones(B, dtype=torch.float64))
    assert bool((found[1, 3:] == 0).all()) and bool((found[MASK] > 0).all())
    whole = rollout(maps_of())[1, :, :3]
    row = {"cls": 0, "first": 0, "leading": 0, "last": 2}.get(pool)
    expected = whole[:3].mean(0) if row is None else whole[row]
    torch.testing.assert_close(found[1, :3], expected / expected.sum(), rtol=0, atol=1e-12)


def test_every_column_has_a_name():
    places = torch.tensor([[[0.0, 2], [2, 5]]]), torch.full((1, 1, 1), torch.nan), torch.tensor([[[0.25, 0.5]]])
    spans = (
        Span("text", 0, 2, places[0]),
        Span("class", 2, 3, places[1]),
        Span("audio", 3, 4, places[2]),
        Span("image", 4, 5, torch.zeros(1, 1, 4)),
    )
    tokens = Tokens(torch.zeros(1, 5, D), torch.ones(1, 5, dtype=torch.bool), spans)
    assert token_names(tokens, ["a", "cup"]) == ["a", "cup", "class 1", "0.25 s", "image 1"]


def test_the_heads_are_drawn_each_by_itself(tmp_path):
    """Only head 2 of block 1 reads anything but evenly: only its map is of more than one colour."""
    n = 5
    maps = [torch.full((1, 2, n, n), 1 / n) for _ in range(2)]
    maps[0][0, 1] = torch.eye(n)
    heads_picture(maps, [f"t{i}" for i in range(n)], tmp_path / "heads.png")
    pixels = np.asarray(Image.open(tmp_path / "heads.png").convert("RGB")).astype(int)
    height, width = pixels.shape[:2]
    top, low = (slice(int(height * a), int(height * (a + 0.2))) for a in (0.2, 0.62))
    left, right = (slice(int(width * a), int(width * (a + 0.15))) for a in (0.25, 0.67))
    spread = {name: pixels[place].std() for name, place in {"1 1": (top, left), "2 2": (low, right)}.items()}
    assert pixels[top, right].std() > 1.5 * max(spread.values())


def pixels_of(path):
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def coloured(pixels):
    return pixels.max(2) - pixels.min(2) > 60


@pytest.mark.parametrize(("reader", "read", "above"), [(4, 1, True), (1, 4, False)])
def test_an_arc_is_above_the_words_where_an_earlier_one_is_read(tmp_path, reader, read, above):
    one = torch.zeros(1, 1, 5, 5)
    one[0, 0, reader, read] = 1
    arcs_picture([one], ["a", "cup", "of", "$5$", "tea"], tmp_path / "arcs.png")
    rows = coloured(pixels_of(tmp_path / "arcs.png"))[:-40].any(1).nonzero()[0]  # the legend is below
    text = pixels_of(tmp_path / "arcs.png").shape[0] // 2
    assert bool((rows < text).all() if above else (rows > text - 30).all())


def test_many_heads_are_drawn_as_their_mean_and_few_each_in_its_colour(tmp_path):
    maps = [torch.zeros(1, 11, 3, 3), torch.zeros(1, 2, 3, 3)]
    for one in maps:
        one[:, 0, 0, 1] = one[:, 1, 2, 1] = 1.0
    kinds = []
    for i, one in enumerate(maps):
        arcs_picture([one], ["x", "y", "z"], tmp_path / f"{i}.png")
        pixels = pixels_of(tmp_path / f"{i}.png")[30:-40]
        kinds.append(bool(((pixels[..., 0] > 200) & (pixels[..., 2] < 120)).any()))
    assert kinds == [False, True]  # only the second has the orange of its second head


def test_each_word_has_its_copy_and_the_rest_is_told(tmp_path):
    """41 subwords: no arcs, and 16 copies of the picture; a class token is no word."""
    n, cells = 41, torch.tensor([[0.0, 0, 5, 11], [5, 0, 10, 11]])
    places = torch.arange(n)[:, None] + torch.tensor([0.0, 1])
    places[0] = torch.nan
    spans = Span("text", 0, n, places[None]), Span("image", n, n + 2, cells[None])
    tokens = Tokens(torch.zeros(1, n + 2, D), torch.ones(1, n + 2, dtype=torch.bool), spans)
    raw = {"text": "x" * n, "image": torch.full((3, 10, 11), 220, dtype=torch.uint8)}
    maps = [torch.full((1, H, n + 2, n + 2), 1 / (n + 2))]
    written, notes = word_pictures(maps, tokens, [f"w{i}" for i in range(n)], raw, tmp_path)
    assert [path.name for path in written] == ["across.png"]
    assert notes == [
        "no arcs.png: it has room for 40 subwords, the text has 41",
        "across.png: the first 16 of 40 subwords",
    ]
    assert word_pictures(maps, tokens, [], raw, tmp_path) == ([], [])


def test_the_cell_a_word_reads_keeps_its_brightness(tmp_path):
    cells = np.array([[0.0, 0, 5, 11], [5, 0, 10, 11]])
    image = torch.tensor([200, 40, 40], dtype=torch.uint8)[:, None, None].expand(3, 10, 11)
    found = []
    for row in ([0, 0, 1.0], [0, 1.0, 0]):
        across_picture(np.array([row]), ["cup"], {"image": (image, np.array([1, 2]), cells)}, tmp_path / "a.png")
        bright = (np.abs(pixels_of(tmp_path / "a.png") - [200, 40, 40]).sum(2) < 9).nonzero()[0]
        found.append(bright.mean())
    assert found[0] > found[1] + 30


def mixed_predictor(fusion):
    torch.manual_seed(0)
    adapters = {
        "text": TextAdapter(D, subwords="word").fit(["a red mug", "a bell"]),
        "image": ImageAdapter(D, patch_size=4, image_size=8),
        "audio": AudioAdapter(D, sample_rate=8000),
    }
    model = Model(adapters, fusion=fusion, backbone=Backbone(D, depth=2, num_heads=2), head=Classify(D, num_classes=2))
    return Predictor(model.eval(), Target("class", ("a", "b")))


SAMPLE = {
    "text": "a red bell",
    "image": np.full((8, 8, 3), 200, dtype=np.uint8),
    "audio": (np.sin(np.arange(4000) / 9).astype(np.float32), 8000),
}


@pytest.mark.parametrize("pool", ["mean", "cls"])
@pytest.mark.parametrize("shown", [("text", "image", "audio"), ("text",), ("audio", "image")], ids="+".join)
def test_what_counted_is_drawn_for_what_there_is(tmp_path, pool, shown):
    predictor = mixed_predictor(EarlyFusion(D, modalities=("text", "image", "audio"), pool=pool))
    found, written, notes = draw_attention(
        predictor, {name: SAMPLE[name] for name in shown}, tmp_path / "new" / "folder"
    )
    assert notes == []
    assert sum(found.values()) == pytest.approx(1, abs=1e-5)
    assert {name for name, share in found.items() if share > 0} == {*shown, *(["class"] if pool == "cls" else [])}
    expected = ["heads.png", "shares.png", *(["arcs.png"] if "text" in shown else [])]
    expected += ["across.png"] if "text" in shown and len(shown) > 1 else []
    assert [path.name for path in written] == [*expected, "attention.html"]
    for name in expected:
        with Image.open(tmp_path / "new" / "folder" / name) as picture:
            assert picture.size[0] > 300


@pytest.mark.parametrize("fusion", [LateFusion, BottleneckFusion])
def test_modalities_that_never_stand_in_one_map_are_refused(tmp_path, capsys, fusion):
    predictor = mixed_predictor(fusion(D, modalities=("text", "image", "audio")))
    with pytest.raises(
        UserError, match=r"^attend: with fusion=late or bottleneck the modalities never stand in one map"
    ):
        draw_attention(predictor, SAMPLE, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_command_needs_a_model(tmp_path, capsys):
    assert main(["attend", "input.text=hello", f"output={tmp_path / 'a'}"]) == 2
    assert "give either run=RUN, a trained model, or weights=..." in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
