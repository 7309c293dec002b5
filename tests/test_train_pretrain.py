"""Masked pretraining: what is hidden, that it is never seen, and that guessing it is learned."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Tokenizer, models

from dxn.cli import main
from dxn.config import build
from dxn.data.rows import Rows
from dxn.data.samples import Samples, open_rows
from dxn.data.targets import Target
from dxn.errors import UserError
from dxn.models import Backbone, BottleneckFusion, Classify, EarlyFusion, LateFusion, Model
from dxn.models.hiding import Hidden, HidePatches, HideRuns, HideWords, Hiding, hide, hide_tiles, standardised
from dxn.models.masked import Masked as Head
from dxn.models.masked import summed_loss
from dxn.tokenize import AudioAdapter, ImageAdapter, TextAdapter
from dxn.tokenize.text import SPECIALS
from dxn.train.pretrain import Epoch, Masked

SENTENCES = [f"{who} {does} {what}" for who, does, what in (("cats", "chase", "mice"), ("dogs", "chew", "bones"))] * 12
WORDS = {"vocab_size": 101, "special_ids": range(len(SPECIALS)), "mask_id": SPECIALS.index("[MASK]")}
TINY = ["data.num_train=23", "data.num_validation=7", "data.num_test=7", "dim=16", "backbone.num_heads=2"]
DIM = 16
FUSIONS = {"early": EarlyFusion, "late": LateFusion, "bottleneck": BottleneckFusion}

IMAGES = {
    "patches": {"patch_size": 4},
    "overlapping": {"patch_size": 5, "stride": 3},
    "conv": {"patch_size": 4, "stem": "conv"},
    "normed": {"patch_size": 4, "norm": True, "position": "none", "token_dropout": 0.5},
}
SOUND = {"sample_rate": 1000, "n_fft": 32, "hop_length": 10, "n_mels": 11, "f_max": 500.0}
SOUNDS = {
    "frames": {"frame_size": 3},
    "conv": {"frame_size": 4, "stem": "conv"},
    "conv patches": {"tokens": "patches", "patch_size": 4, "stem": "conv"},
    "whisper": {"frame_size": 2, "stem": "whisper"},
    "patches": {"tokens": "patches", "patch_size": [5, 3]},
    "overlapping": {"tokens": "patches", "patch_size": [5, 4], "stride": [3, 3], "pad_end": False},
    "clip": {"frame_size": 3, "normalize": "clip", "pad_end": False},
    "conv without the end": {"frame_size": 4, "stem": "conv", "pad_end": False},
    "waveform": {"tokens": "waveform", "frame_size": 23},
}


def picture(height, width, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (3, height, width), dtype=np.uint8))


def sound(length, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 0.3, length).astype(np.float32))


def image_adapter(kind="patches", **options):
    return ImageAdapter(DIM, **{"image_size": None, **IMAGES[kind], **options})


def audio_adapter(kind="frames"):
    return AudioAdapter(DIM, **SOUND, **SOUNDS[kind]).fit([sound(701)])


def collated(adapter, raws):
    batch = adapter.prepare.collate([adapter.prepare(raw) for raw in raws])
    return {**batch, "rows": torch.arange(len(raws))}


def hider_of(adapter, *, share=0.5, span=2):
    if isinstance(adapter, ImageAdapter):
        return HidePatches(adapter, share=share)
    if isinstance(adapter, AudioAdapter):
        return HideRuns(adapter, share=share, span=span)
    return HideWords(adapter, share=share)


def model_of(*adapters, fusion="early", pool="mean", depth=1):
    names = [adapter.modality for adapter in adapters]
    return Model(
        dict(zip(names, adapters, strict=True)),
        fusion=FUSIONS[fusion](DIM, modalities=names, pool=pool),
        backbone=Backbone(DIM, depth=depth, num_heads=2),
        head=Classify(DIM, num_classes=2),
    )


def samples_of(raws, *, cells=None, target=None):
    """Samples whose raws are already tensors or strings."""
    adapters = {"text": text_adapter, "image": image_adapter, "audio": audio_adapter}
    rows = Rows({**raws, **(cells or {})}, [str(i) for i in range(len(next(iter(raws.values()))))])
    prepares = {name: adapters[name]().prepare for name in raws}
    return Samples(open_rows(rows, prepares, need_target=False), prepares, target=target)


def text_adapter():
    return TextAdapter(DIM, subwords="word").fit(SENTENCES)


def array(raw):
    """A picture as a source that an image adapter reads."""
    return Image.fromarray(raw.permute(1, 2, 0).numpy())


def together(rows=12):
    """The modalities of few rows that say the same: two sentences, two pictures, two sounds."""
    return {
        "text": SENTENCES[:rows],
        "image": [array(picture(13, 11, i % 2)) for i in range(rows)],
        "audio": [(sound(307, i % 2).numpy(), 1000) for i in range(rows)],
    }


def all_adapters():
    return text_adapter(), image_adapter(), audio_adapter()


# --- words


def test_about_the_share_is_hidden_and_mostly_by_mask():
    ids = torch.randint(len(SPECIALS), 101, (97, 89))
    mask = torch.rand(97, 89) < 0.7
    chosen, shown = hide(ids, mask, 0.3, torch.Generator().manual_seed(0), **WORDS)
    assert not (chosen & ~mask).any()
    assert torch.equal(shown[~chosen], ids[~chosen])
    assert chosen.sum() / mask.sum() == pytest.approx(0.3, abs=0.02)
    assert (shown[chosen] == SPECIALS.index("[MASK]")).float().mean() == pytest.approx(0.8, abs=0.02)
    # 1 in 10 stays, and of those that become another one some few become themselves.
    assert (shown[chosen] == ids[chosen]).float().mean() == pytest.approx(0.1 + 0.1 / 96, abs=0.02)


def test_special_subwords_are_never_hidden():
    ids = torch.arange(len(SPECIALS)).repeat(3, 50)
    chosen, shown = hide(ids, torch.ones_like(ids, dtype=torch.bool), 0.9, torch.Generator(), **WORDS)
    assert not chosen.any() and torch.equal(shown, ids)


def test_runs_of_subwords_in_columns_of_their_own_are_not_guessed():
    adapter = TextAdapter(DIM, subwords="word", ngrams=[2], ngram_columns=True).fit(SENTENCES)
    batch = collated(adapter, SENTENCES[:5])
    hidden = hider_of(adapter)(batch, torch.Generator().manual_seed(0))
    guesses = guesses_of(masked_model(adapter), {"size": 5, "text": batch}, {"text": hidden})
    assert adapter(batch).x.shape[1] == 2 * batch["ids"].shape[1]
    assert guesses["text"].shape == (len(hidden.content), len(adapter.table.weight))


# --- tiles


@pytest.mark.parametrize("runs", [(1, 1), (2, 2), (3, 1), (2, 5)])
def test_hidden_tiles_are_the_share_of_each_grid(runs):
    sizes = torch.tensor([[29, 31], [7, 31], [29, 5], [1, 1]]).repeat(2000, 1)
    draw = torch.Generator().manual_seed(0)
    hidden = hide_tiles(sizes, (29, 31), (2, 3), torch.tensor([runs]).repeat(8000, 1), 0.4, draw)
    assert hidden.shape == (8000, 29, 31)
    for i, (height, width) in enumerate(sizes[:4].tolist()):
        assert hidden[i::4, :height, :width].float().mean() == pytest.approx(0.4, abs=0.03)


def test_a_share_of_single_cells_is_exact():
    sizes = torch.tensor([[7, 11], [5, 2]])
    hidden = hide_tiles(sizes, (7, 11), (1, 1), torch.ones_like(sizes), 0.5, torch.Generator().manual_seed(1))
    assert int(hidden[0].sum()) in (38, 39) and int(hidden[1, :5, :2].sum()) == 5


def test_tiles_are_hidden_whole():
    sizes = torch.tensor([[60, 1]]).repeat(50, 1)
    runs = torch.tensor([[4, 1]]).repeat(50, 1)
    hidden = hide_tiles(sizes, (60, 1), (3, 1), runs, 0.3, torch.Generator().manual_seed(0))[:, :, 0]
    assert len({tuple(row) for row in hidden.tolist()}) > 30
    for row in hidden.int().tolist():
        runs_seen = "".join(map(str, row)).strip("1").split("0")  # those at the ends may be cut short
        assert all(len(run) % 12 == 0 for run in runs_seen)


def test_the_same_seed_hides_the_same():
    sizes = torch.tensor([[23, 19]])
    first, again, other = (
        hide_tiles(sizes, (23, 19), (2, 2), sizes * 0 + 2, 0.5, torch.Generator().manual_seed(s)) for s in (3, 3, 4)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


# --- columns


@pytest.mark.parametrize("kind", IMAGES)
def test_hidden_patches_are_guessed_as_their_own_pixels_normalised(kind):
    adapter = image_adapter(kind).double()
    raws = [picture(13, 23, 1), picture(17, 11, 2)]
    adapter.fit(raws)
    batch = collated(adapter, raws)
    hidden = hider_of(adapter)(batch, torch.Generator().manual_seed(0))
    tokens = adapter.eval()(batch)
    rows, columns = hidden.columns.nonzero(as_tuple=True)
    assert hidden.columns.shape == tokens.mask.shape and len(rows) > 4
    assert tokens.mask[rows, columns].all()
    assert hidden.real is not None
    for i, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        top, left, bottom, right = tokens.spans[0].places[row, column].int().tolist()
        patch = (raws[row][:, top:bottom, left:right].double() / 255 - adapter.mean.view(3, 1, 1)) / adapter.std.view(
            3, 1, 1
        )
        assert int(hidden.real[i].sum()) == patch.numel()
        theirs = ((patch - patch.mean()) / (patch.var(correction=0) + 1e-6).sqrt()).flatten()
        torch.testing.assert_close(hidden.content[i][hidden.real[i]], theirs, rtol=1e-9, atol=1e-9)
        assert hidden.shown["pixels"][row, :, top:bottom, left:right].std((1, 2), correction=0).max() < 1e-9


@pytest.mark.parametrize("kind", SOUNDS)
def test_hidden_frames_are_guessed_as_the_adapter_normalises_them(kind):
    adapter = audio_adapter(kind)
    batch = collated(adapter, [sound(307, 1), sound(211, 2)])
    hidden = hider_of(adapter)(batch, torch.Generator().manual_seed(0))
    tokens = adapter(batch)
    rows, columns = hidden.columns.nonzero(as_tuple=True)
    assert hidden.columns.shape == tokens.mask.shape and len(rows) > 3
    assert tokens.mask[rows, columns].all()
    features = (batch["features"] - adapter.mean) / adapter.std
    assert hidden.real is not None
    for i, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        start, stop = (tokens.spans[0].places[row, column] / adapter.seconds).round().int().tolist()
        low = column % adapter.bands * adapter.stride[0]
        cell = features[row, start:stop, low : low + adapter.cut[0]]
        torch.testing.assert_close(hidden.content[i][hidden.real[i]], cell.flatten())
        shown = hidden.shown["features"][row, start:stop, low : low + adapter.cut[0]]
        assert torch.equal(shown, adapter.mean[low : low + adapter.cut[0]].expand_as(shown))


@pytest.mark.parametrize("adapter", [image_adapter(k) for k in IMAGES] + [audio_adapter(k) for k in SOUNDS])
def test_what_is_not_hidden_is_shown_as_it_is_and_padding_is_never_hidden(adapter):
    image = isinstance(adapter, ImageAdapter)
    batch = collated(adapter, [picture(13, 23), picture(7, 5)] if image else [sound(307), sound(101)])
    hidden = hider_of(adapter)(batch, torch.Generator().manual_seed(0))
    name = "pixels" if image else "features"
    before, after = batch[name].float(), hidden.shown[name]
    changed = (before != after).nonzero()
    assert len(changed)
    sizes = batch["sizes"] if image else torch.stack([batch["lengths"], batch["lengths"] * 0 + 10_000], 1)
    for sample, *place in changed.tolist():
        assert all(at < int(size) for at, size in zip(place[-2:], sizes[sample], strict=True))
    assert not (hidden.columns & ~adapter.eval()(batch).mask).any()


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 19), st.integers(1, 19)), min_size=1, max_size=3),
    patch=st.integers(1, 6).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size))),
    share=st.floats(0.05, 0.95),
)
def test_patches_of_any_size_and_overlap_are_guessed_only_where_nothing_of_them_is_shown(sizes, patch, share):
    adapter = ImageAdapter(DIM, image_size=None, patch_size=patch[0], stride=patch[1], position="none")
    batch = collated(adapter, [picture(h, w).clamp(max=100) for h, w in sizes])
    adapter.mean.fill_(0.9)
    hidden = hider_of(adapter, share=share)(batch, torch.Generator().manual_seed(0))
    tokens = adapter(batch)
    assert hidden.columns.shape == tokens.mask.shape and not (hidden.columns & ~tokens.mask).any()
    for row, column in hidden.columns.nonzero().tolist():
        top, left, bottom, right = tokens.spans[0].places[row, column].int().tolist()
        assert (hidden.shown["pixels"][row, :, top:bottom, left:right] > 200).all()  # no pixel of theirs is over 100


def test_of_patches_that_overlap_by_half_a_good_part_is_guessed():
    adapter = ImageAdapter(DIM, image_size=None, patch_size=4, stride=2)
    hidden = hider_of(adapter)(collated(adapter, [picture(82, 82)]), torch.Generator().manual_seed(0))
    # Tiles are patches: of four columns one is in 1 of them, two lie across 2, and one across 4, half of them hidden.
    assert float(hidden.columns.float().mean()) == pytest.approx((0.5 + 2 * 0.5**2 + 0.5**4) / 4, abs=0.03)


def test_normalised_patches_have_mean_0_and_deviation_1_and_flat_ones_are_0():
    x, real = torch.randn(5, 7, dtype=torch.float64) * 3 + 2, torch.ones(5, 7, dtype=torch.bool)
    x[1], real[2, 3:] = 4.0, False
    y = standardised(x, real)
    assert y[1].abs().max() == 0
    for i in (0, 2, 3, 4):
        torch.testing.assert_close(y[i][real[i]].mean(), torch.tensor(0.0, dtype=torch.float64))
        assert float(y[i][real[i]].std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_the_loss_takes_no_filling_in():
    real = torch.tensor([[True, False, True], [False, True, True]])
    content, guesses = torch.tensor([[1.0, 9.0, 2.0], [9.0, 3.0, 4.0]]), torch.zeros(2, 3)
    total, count = summed_loss(guesses, Hidden({}, torch.ones(1, 2), content, real))
    assert (float(total), int(count)) == (pytest.approx(1 + 4 + 9 + 16), 4)


# --- nothing leaks


def masked_model(*adapters, **options):
    model = model_of(*adapters, **options)
    masked = Model(model.adapters, fusion=model.fusion, backbone=model.backbone, head=Head(DIM))
    return masked.double().eval()


def guesses_of(masked, batch, hidden):
    """What is guessed by modality, of a batch and what is hidden of it."""
    shown = {**batch, **{name: {**batch[name], **h.shown} for name, h in hidden.items()}, "hidden": hidden}
    encoded, _ = masked.encode(masked.embed(shown))
    return {n: masked.head.guesses(n, encoded, batch[n]["rows"], h.columns) for n, h in hidden.items()}


@pytest.mark.parametrize("adapter", [image_adapter(k) for k in IMAGES] + [audio_adapter(k) for k in SOUNDS])
def test_what_is_hidden_is_never_seen_and_what_is_not_is(adapter):
    image, name = isinstance(adapter, ImageAdapter), adapter.modality
    key = "pixels" if image else "features"
    batch = collated(adapter, [picture(13, 23), picture(17, 11)] if image else [sound(307), sound(211)])
    masked = masked_model(adapter)
    whole = {**batch, key: batch[key].double()}
    hidden = hider_of(adapter)(whole, torch.Generator().manual_seed(0))
    covered = hidden.shown[key] != whole[key]

    def guesses(raw):
        again = hider_of(adapter)({**batch, key: raw}, torch.Generator().manual_seed(0))
        assert torch.equal(again.columns, hidden.columns)
        return guesses_of(masked, {"size": 2, name: {**batch, key: raw}}, {name: again})[name]

    raw = whole[key].clone().requires_grad_()
    found = guesses(raw)
    assert torch.equal(found, guesses(torch.where(covered, whole[key] / 2 + 1, whole[key])))
    summed_loss(found, hidden)[0].backward()
    assert raw.grad is not None and raw.grad[covered].abs().max() == 0
    assert raw.grad[~covered].abs().max() > 0


def test_a_column_is_marked_only_where_it_is_hidden():
    adapter = image_adapter()
    masked = masked_model(adapter)
    batch = collated(adapter, [picture(13, 23), picture(9, 11)])
    hidden = hider_of(adapter)(batch, torch.Generator().manual_seed(0))
    seen = []
    masked.backbone.register_forward_pre_hook(lambda _, args: seen.append(args[0].x))
    guesses_of(masked, {"size": 2, "image": batch}, {"image": hidden})
    plain = adapter({**batch, **hidden.shown}).x
    marked = (seen[0] - plain).abs().amax(-1) > 0
    assert torch.equal(marked, hidden.columns)
    there = seen[0][hidden.columns] - plain[hidden.columns]
    torch.testing.assert_close(there, masked.head.marks["image"].expand_as(there))


# --- together


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_every_fusion_guesses_each_modality_and_rows_that_miss_one_have_none_to_hide(fusion, pool):
    text, image, audio = all_adapters()
    batch = {
        "size": 5,
        "text": {**collated(text, SENTENCES[:3]), "rows": torch.tensor([0, 1, 4])},
        "image": {**collated(image, [picture(13, 23), picture(9, 11)]), "rows": torch.tensor([1, 2])},
        "audio": {**collated(audio, [sound(307), sound(211)]), "rows": torch.tensor([2, 3])},
    }
    draw = torch.Generator().manual_seed(0)
    adapters = {"text": text, "image": image, "audio": audio}
    hidden = {name: hider_of(adapter)(batch[name], draw) for name, adapter in adapters.items()}
    masked = masked_model(text, image, audio, fusion=fusion, pool=pool, depth=2)
    guesses = guesses_of(masked, batch, hidden)
    assert {n: tuple(g.shape) for n, g in guesses.items()} == {
        "text": (int(hidden["text"].columns.sum()), len(text.table.weight)),
        "image": (int(hidden["image"].columns.sum()), 3 * 4 * 4),
        "audio": (int(hidden["audio"].columns.sum()), 3 * 11),
    }
    assert [len(h.columns) for h in hidden.values()] == [3, 2, 2]
    # Row 2's picture is guessed out of its sound, where they meet early; row 0's words never are.
    other = {**batch, "audio": {**batch["audio"], "features": batch["audio"]["features"] * 2 + 1}}
    changed = guesses_of(masked, other, {**hidden, "audio": hider_of(audio)(other["audio"], draw)})
    assert torch.equal(changed["text"], guesses["text"])
    first = int(hidden["image"].columns[0].sum())
    assert torch.equal(changed["image"][:first], guesses["image"][:first])
    assert torch.equal(changed["image"][first:], guesses["image"][first:]) == (fusion == "late")


@pytest.mark.parametrize("names", [("text",), ("image",), ("audio",), ("text", "image", "audio")])
def test_guessing_what_is_hidden_is_learned(names):
    raws = {name: column for name, column in together().items() if name in names}
    adapters = [a for a in all_adapters() if a.modality in names]
    pretrain = Masked(epochs=25, hiding=Hiding(text=0.3, span=3), lr=2e-2)
    epochs = list(pretrain(model_of(*adapters), samples_of(raws), batch_size=6, bf16=False))
    assert [epoch.number for epoch in epochs] == list(range(1, 26))
    assert [set(epoch.losses) for epoch in epochs] == [set(names)] * 25
    for name in names:
        last = [epoch.losses[name] for epoch in epochs[-8:]]  # a single epoch may hide what little is left to tell
        assert sum(last) / 8 < 0.7 * epochs[0].losses[name], name
    assert all((epoch.accuracy is not None) == ("text" in names) for epoch in epochs)


def test_what_stands_beside_a_hidden_word_gives_it_away():
    model, samples = model_of(text_adapter()), samples_of({"text": SENTENCES})
    epochs = list(Masked(epochs=60, hiding=Hiding(text=0.3), lr=1e-2)(model, samples, batch_size=8, bf16=False))
    assert epochs[0].accuracy is not None and epochs[-1].accuracy is not None
    assert epochs[0].accuracy < 0.6 < 0.85 < epochs[-1].accuracy  # a sentence may lose all of its words


def test_a_picture_gives_away_a_hidden_word():
    raws = together(24)
    accuracy = {}
    for names in (("text",), ("text", "image")):
        torch.manual_seed(0)
        adapters = [a for a in all_adapters() if a.modality in names]
        pretrain = Masked(epochs=25, hiding=Hiding(text=0.9, image=0.0), lr=1e-2)
        epochs = pretrain(model_of(*adapters), samples_of({n: raws[n] for n in names}), batch_size=8, bf16=False)
        accuracy[names] = list(epochs)[-1].accuracy
    # By themselves, sentences without most of their words leave both open.
    assert accuracy["text",] < 0.8 < 0.95 < accuracy["text", "image"]


def pretrained(samples, **options):
    torch.manual_seed(5)
    model = model_of(*all_adapters())
    pretrain = Masked(**{"epochs": 2, "hiding": Hiding(span=3), **options})
    return model.state_dict(), list(pretrain(model, samples, batch_size=5, bf16=False))


def test_the_same_seed_ends_in_the_same_bits_and_targets_play_no_part():
    found = pretrained(samples_of(together()))
    target = Target("class", ("a", "b"))
    labelled = samples_of(together(), cells={"target": ["a", "b"] * 6}, target=target)
    nonsense = samples_of(together(), cells={"target": [None] * 12}, target=target)
    for again in (labelled, nonsense):
        weights, epochs = pretrained(again)
        assert epochs == found[1]
        assert all(torch.equal(weights[name], value) for name, value in found[0].items())


def test_the_head_rests_and_all_else_of_the_model_learns():
    torch.manual_seed(5)
    start = {name: value.clone() for name, value in model_of(*all_adapters()).state_dict().items()}
    weights, _ = pretrained(samples_of(together()))
    moved = {name.split(".")[0] for name, value in weights.items() if not torch.equal(value, start[name])}
    assert moved == {"adapters", "fusion", "backbone"}
    assert all(torch.equal(value, start[name]) for name, value in weights.items() if name.startswith("head."))
    assert set(weights) == set(start)


def test_rows_without_a_modality_and_batches_without_one_are_no_trouble():
    raws = together()
    raws["text"] = [None] * 11 + [SENTENCES[0]]
    raws["audio"][:6] = [None] * 6
    _, epochs = pretrained(samples_of(raws), hiding=Hiding(text=0.9))
    assert all(math.isfinite(value) for epoch in epochs for value in epoch.losses.values())


def test_a_share_of_0_hides_none_of_a_modality_and_shows_it():
    _, epochs = pretrained(samples_of(together()), hiding=Hiding(text=0.0, audio=0.0))
    assert [set(epoch.losses) for epoch in epochs] == [{"image"}] * 2 and epochs[0].accuracy is None


def test_frozen_weights_stay_and_the_tokens_of_pictures_are_all_there():
    adapter = image_adapter("normed").requires_grad_(False)
    before = [p.clone() for p in adapter.parameters()]
    samples = samples_of({"image": together()["image"]})
    list(Masked(epochs=1)(model_of(adapter), samples, batch_size=5, bf16=True))
    assert all(torch.equal(a, b) for a, b in zip(before, adapter.parameters(), strict=True))


def test_an_epoch_is_told_in_a_line():
    assert str(Epoch(1, {"text": 4.22104, "image": 0.5}, 0.25)) == "text 4.2210 (guessed 0.2500)  image 0.5000"
    assert str(Epoch(3, {"audio": 1 / 3}, None)) == "audio 0.3333"


# --- asked for wrongly, and in a run


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        (Masked, {"epochs": 0}, "epochs must be at least 1, got 0"),
        (Masked, {"warmup": 1.0}, "warmup is a share of the run, at least 0 and under 1, got 1.0"),
        (Hiding, {"span": 0}, "span must be at least 1, got 0"),
        (Hiding, {"text": 1.0}, "text must be at least 0 and under 1, got 1.0"),
        (Hiding, {"image": -0.1}, "image must be at least 0 and under 1, got -0.1"),
        (Hiding, {"audio": 1.5}, "audio must be at least 0 and under 1, got 1.5"),
    ],
)
def test_wrong_options_are_named(made, options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        made(**options)
    with pytest.raises(UserError, match=f"^pretrain: {message}$"):
        build({"_target_": f"{made.__module__}.{made.__name__}", **options}, key="pretrain")


def test_where_nothing_is_hidden_that_is_said():
    with pytest.raises(
        UserError, match=r"pretrain\.hiding: nothing is hidden of image; raise its share, or leave pretrain out"
    ):
        Masked(hiding=Hiding(image=0)).check({"image": image_adapter()})
    Masked(hiding=Hiding(image=0)).check({"image": image_adapter(), "audio": audio_adapter()})


def test_words_cannot_be_hidden_without_a_mask():
    adapter = TextAdapter(DIM)
    adapter.use(Tokenizer(models.WordLevel({"cats": 0, "[UNK]": 1}, unk_token="[UNK]")))
    with pytest.raises(UserError, match=r"pretrain\.hiding\.text: the text's tokenizer has no \[MASK\]"):
        Masked().check({"text": adapter})
    Masked(hiding=Hiding(text=0)).check({"text": adapter, "image": image_adapter()})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            ["adapters=[image]", "pretrain.hiding.image=0"],
            "pretrain.hiding: nothing is hidden of image; raise its share",
        ),
        (["adapters=[text]", "pretrain.hiding.text=1"], "pretrain.hiding: text must be at least 0 and under 1, got 1"),
    ],
)
def test_what_cannot_be_pretrained_is_refused_and_nothing_is_written(asked, message, tmp_path, capsys):
    assert main(["train", "pretrain=masked", *TINY, *asked, f"run={tmp_path / 'run'}"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_pretrains_before_it_trains(tmp_path, capsys):
    asked = ["pretrain=masked", "pretrain.epochs=2", "trainer.epochs=1", f"run={tmp_path / 'run'}"]
    assert main(["train", "adapters=[text,image]", *TINY, *asked]) == 0
    shown = capsys.readouterr().out
    assert shown.index("pretraining 1/2  text") < shown.index("pretraining 2/2  text") < shown.index("epoch 1/1")
    line = next(line for line in shown.splitlines() if "pretraining 2/2" in line)
    assert "(guessed 0." in line and "  image " in line
