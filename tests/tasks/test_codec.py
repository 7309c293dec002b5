"""Codecs: rounding, the way back from patches to raw values, and trained models."""

import json
import pickle
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.newcomer import printed, refused
from helpers.runs import SMALL_IMAGES
from helpers.tasks import build_model, make_batch
from scipy.ndimage import gaussian_filter

import dxn
from dxn.core.dropout import keyed
from dxn.core.tensors import without_values
from dxn.models import Backbone
from dxn.models.fusion import EarlyFusion
from dxn.report.examples import Budget
from dxn.report.sides import side_by_side
from dxn.tasks import Codec
from dxn.tasks.any.vocabulary import Codes
from dxn.tasks.codec.head import FiniteScalars
from dxn.tasks.codec.stored import StoredCodec
from dxn.tasks.codec.task import similarity
from dxn.tokenize import (
    AudioAdapter,
    ImageAdapter,
    ResizeOptions,
    SeriesAdapter,
    SpectrogramOptions,
    VideoAdapter,
)
from dxn.tokenize.code_adapters import AudioCodes, ImageCodes, SeriesCodes, VideoCodes
from dxn.viz.drawers import Shown, get_drawer
from dxn.viz.sample import coords_of, shown_inputs

D = 16
STRETCH = ResizeOptions(mode="stretch")


def noise(*shape):
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, np.uint8))


def fitted(adapter, raw):
    adapter.fit([raw])
    return adapter, raw


def picture(**options):
    adapter = ImageAdapter(D, image_size=[20, 28], patch_size=8, resize=STRETCH, **options)
    return fitted(adapter, noise(3, 20, 28))


def clip():
    adapter = VideoAdapter(D, image_size=16, patch_size=8, resize=STRETCH)
    return fitted(adapter, noise(6, 3, 16, 16))


def series(channels="joint"):
    adapter = SeriesAdapter(D, patch_size=5, channels=channels)
    return fitted(adapter, torch.randn(50, 3, generator=torch.Generator().manual_seed(0)))


def sound(**options):
    spectrogram = SpectrogramOptions(n_mels=40)
    adapter = AudioAdapter(D, sample_rate=8000, spectrogram=spectrogram, **options)
    time = torch.arange(6000) / 8000
    return fitted(adapter, 0.3 * (2 * torch.pi * 440 * time).sin())


@pytest.mark.parametrize("levels", [[8, 5, 5, 5], [4, 3], [7]])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_codes_are_the_rounded_vectors(levels, stages):
    scalars = FiniteScalars(levels, stages=stages)
    z = 2 * torch.randn(200, len(levels), generator=torch.Generator().manual_seed(0))
    vectors, codes = scalars(z)
    torch.testing.assert_close(scalars.vectors(codes), vectors, rtol=0, atol=1e-6)
    assert codes.shape == (200, stages)
    assert codes.min() >= 0 and codes.max() < scalars.num_codes
    # Half of the distance of two levels of the last stage.
    limit = 1 / (torch.tensor(levels) - 1.0) ** stages
    assert ((vectors - z.tanh()).abs() <= limit + 1e-6).all()


def test_a_second_stage_of_two_levels_is_refused():
    FiniteScalars([2, 5])
    with pytest.raises(ValueError, match=r"levels must be at least 3 with stages=2, .*\[2, 5\]"):
        Codec(decoder=partial(Backbone, D, depth=1, num_heads=2), levels=[2, 5], stages=2)


def test_all_codes_differ_and_stay_the_same_when_they_are_rounded_again():
    scalars = FiniteScalars([4, 3, 2])
    vectors = scalars.vectors(torch.arange(24)[:, None])
    assert len(vectors.unique(dim=0)) == 24
    again = scalars((vectors * 0.999).atanh())[1][:, 0]
    assert torch.equal(again, torch.arange(24))


@pytest.mark.parametrize("stages", [1, 2])
def test_noise_moves_a_number_by_up_to_half_a_level_of_the_last_stage(stages):
    scalars = FiniteScalars([5, 3], stages=stages)
    z = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
    plain, codes = scalars(z)
    half = torch.tensor([4.0, 2.0]) ** -stages
    for noise in (-1.0, 1.0):
        moved, other = scalars(z, torch.full_like(z, noise))
        assert ((moved - plain) * noise >= -1e-5).all()
        assert ((moved - plain).abs() <= 2 * half + 1e-5).all()
        assert (other != codes).any()
    torch.testing.assert_close(scalars(z, torch.zeros_like(z))[0], plain)


def test_distances_are_counted_in_levels_from_the_middle():
    scalars = FiniteScalars([5, 4, 3, 2])
    vectors = scalars.vectors(torch.arange(scalars.num_codes)[:, None])
    numbers = torch.arange(scalars.num_codes)[:, None] // scalars.factors % scalars.counts
    expected = (numbers - torch.tensor([2, 2, 1, 1])).abs().float()
    distances = scalars.distance((vectors * (1 - 1e-6)).double().atanh())
    torch.testing.assert_close(distances, expected.double(), rtol=0, atol=1e-4)


def test_a_training_rounds_with_the_same_noise_in_any_batch():
    _, model, batch = setting()
    model.train()
    with keyed(torch.tensor([0, 1]), 3):
        first = model(batch).codes
    with keyed(torch.tensor([1, 0]), 3):
        swapped = model(batch).codes
    assert torch.equal(first, swapped.flip(0))
    with keyed(torch.tensor([0, 1]), 4):
        assert not torch.equal(model(batch).codes, first)


def test_gradients_pass_the_rounding():
    z = torch.zeros(3, 2, requires_grad=True)
    FiniteScalars([5, 5])(z)[0].sum().backward()
    assert torch.equal(z.grad, torch.ones(3, 2))


@pytest.mark.parametrize(
    "make",
    [picture, clip, series, partial(series, "independent")],
    ids=["picture", "clip", "series", "independent"],
)
def test_patches_are_put_together_to_the_prepared_value(make):
    adapter, raw = make()
    contents = pickle.loads(pickle.dumps(adapter.contents()))
    values, valid = contents.patches(adapter.tokenizer(raw))
    tokens = adapter(adapter.tokenizer.batch([raw]))
    assert values.shape == (tokens.x.shape[1], contents.num_outputs)
    groups, _, height, width = contents.read(adapter.tokenizer(raw))[0].shape
    restored = contents.raw(values, contents.size(len(values), (groups, height, width)))
    assert valid.any(1).all()
    if raw.dtype == torch.uint8:
        assert torch.equal(restored, raw)
    else:
        torch.testing.assert_close(restored, raw)


def test_a_sound_is_restored_from_its_spectrogram():
    adapter, raw = sound()
    contents = adapter.contents()
    values, _ = contents.patches(adapter.tokenizer(raw))
    restored = contents.raw(values, contents.size(len(values), (1, 4, 40)))
    frequency = torch.fft.rfft(restored).abs().argmax() * 8000 / len(restored)
    assert abs(frequency - 440) < 10
    assert float(restored.square().mean()) == pytest.approx(float(raw.square().mean()), rel=0.3)


def test_a_spectrogram_that_loses_the_level_cannot_be_a_sound_again():
    adapter = AudioAdapter(D, spectrogram=SpectrogramOptions(frontend="kaldi"))
    task = Codec(decoder=partial(Backbone, D, depth=1, num_heads=2))
    with pytest.raises(dxn.UserError, match=r"x cannot be computed .* frontend=mel"):
        task.target.bind({"x": adapter})


def test_equal_pictures_have_a_similarity_of_1():
    first = torch.rand(3, 20, 20, generator=torch.Generator().manual_seed(0))
    assert similarity(first, first) == pytest.approx(1)
    assert similarity(first, 1 - first) < 0
    assert np.isnan(similarity(first[:, :8], first[:, :8]))


def test_autocast_does_not_change_the_similarity():
    first = torch.full((3, 16, 16), 0.5)
    first[:, ::3] += 0.01
    second = first + 0.02
    exact = similarity(first, second)
    with torch.autocast("cpu", torch.bfloat16):
        assert similarity(first, second) == exact
    assert -1 <= exact < 1


def setting(make=picture, **options):
    torch.manual_seed(0)
    adapter, raw = make()
    task = Codec(decoder=partial(Backbone, D, depth=1, num_heads=2), levels=[5, 5], **options)
    task.target.bind({"x": adapter})
    model = build_model(task, {"x": adapter}, dim=D).eval()
    return task, model, make_batch(task, {"x": adapter}, {"x": [raw, raw]})


@pytest.mark.parametrize("make", [picture, clip, series, sound])
@torch.no_grad()
def test_codes_decode_to_the_values_of_the_model(make):
    task, model, batch = setting(make, stages=2)
    output = model(batch)
    tokens, _ = model.encode(model.embed(batch))
    torch.testing.assert_close(model.head.codes(tokens), output.codes)
    values = model.head.values(output.codes, tokens.mask)
    torch.testing.assert_close(values, output.values, rtol=1e-4, atol=1e-5)
    loss = task.loss(output, batch)
    assert loss.weight == batch["target"]["valid"].sum()
    first, second = task.predict(model.head, output, batch)
    assert torch.equal(first.codes, second.codes)
    # The sum of the squared errors in the unit of the raw values.
    scale = task.target.contents.scale
    if make is series:
        x, true = (
            task.target.contents.joined(v[:1], first.size)[0, 0, 0]
            for v in (output.values, batch["target"]["values"])
        )
        assert first.error == pytest.approx(float(((x - true) * scale).square().sum()), rel=1e-4)


def stored_codec(make):
    adapter, raw = make()
    fusion = EarlyFusion(D, inputs=["x"])
    task = Codec(decoder=partial(Backbone, D, depth=1, num_heads=2), levels=[5, 5], stages=2)
    task.target.bind({"x": adapter})
    groups, _, height, width = task.target.contents.read(adapter.tokenizer(raw))[0].shape
    codec = StoredCodec(
        input="x",
        adapter=adapter,
        fusion=fusion,
        backbone=Backbone(D, depth=1, num_heads=2),
        task=task,
        size=(groups, height, width),
    )
    return codec, adapter, raw


@pytest.mark.parametrize(
    "make",
    [clip, series, partial(series, "independent"), sound],
    ids=["clip", "series", "independent", "sound"],
)
def test_any_number_of_codes_can_be_decoded(make):
    codec, _, raw = stored_codec(make)
    complete = Codes(codec).value(torch.ones(codec.num_tokens, 2, dtype=torch.long))
    assert complete.shape[1:] == raw.shape[1:]
    # A generated value can end anywhere.
    for count, flat in [(1, True), (3, True), (5, True), (13, True), (1, False), (7, False)]:
        codes = Codes(codec, flat=flat)
        value = codes.value(torch.ones(count, codes.stages, dtype=torch.long))
        assert value.shape[1:] == raw.shape[1:] and 0 < len(value) <= len(complete)


@pytest.mark.parametrize(
    "make", [clip, series, partial(series, "independent"), sound, partial(sound, frame_size=8)]
)
@torch.no_grad()
def test_longer_samples_of_a_batch_do_not_change_the_decoded_values(make):
    task, model, _ = setting(make)
    adapter, raw = make()
    short = raw[: 2 * len(raw) // 3]
    alone, beside = (
        model(make_batch(task, {"x": adapter}, {"x": raws})).values[0]
        for raws in ([short], [short, raw])
    )
    torch.testing.assert_close(beside[: len(alone)], alone, rtol=1e-4, atol=1e-5)


def test_a_codec_with_large_weights_has_their_values_after_loading(tmp_path):
    dim = 128

    def stored():
        adapter = AudioAdapter(
            dim, sample_rate=8000, spectrogram=SpectrogramOptions(n_mels=40), stem="conv"
        )
        backbone = partial(Backbone, dim, depth=1, num_heads=2)
        parts = {"adapter": adapter, "fusion": EarlyFusion(dim, inputs=["x"])}
        task = Codec(decoder=backbone, levels=[5, 5])
        return StoredCodec(input="x", size=(1, 64, 40), backbone=backbone(), task=task, **parts)

    codec = stored()
    codec.save(tmp_path / "codec.safetensors")
    with without_values():
        loaded = stored()
    assert any(each.is_meta for each in loaded.parameters())
    loaded.load(tmp_path / "codec.safetensors")
    codes = torch.tensor([[1], [7], [24]])
    assert torch.equal(loaded.decode(codes), codec.decode(codes))


@pytest.mark.parametrize("read", ["values", "codes"])
@pytest.mark.parametrize(
    ("make", "kind"),
    [(clip, VideoCodes), (sound, AudioCodes), (partial(sound, tokens="patches"), AudioCodes)],
)
def test_tokens_of_a_codec_are_drawn_as_those_of_its_adapter(make, kind, read):
    codec, adapter, raw = stored_codec(make)
    codes = kind(D, codec=codec, read=read)
    tokens = adapter(adapter.tokenizer.batch([raw]))
    coords = coords_of(tokens.spans[0])
    first, second = (shown_inputs({"x": each}, {"x": raw})["x"] for each in (adapter, codes))
    drawer = get_drawer(second.modality)
    np.testing.assert_array_equal(drawer.boxes(second, coords), drawer.boxes(first, coords))
    np.testing.assert_array_equal(drawer.panel(second).pixels, drawer.panel(first).pixels)


@pytest.mark.parametrize(
    ("make", "kind"),
    [(clip, VideoCodes), (sound, AudioCodes), (series, SeriesCodes), (picture, ImageCodes)],
)
def test_codes_have_no_places_and_no_names(make, kind):
    codec, _, raw = stored_codec(make)
    codes = kind(D, codec=codec, read="codes")
    tokens = codes(codes.tokenizer.batch([raw]))
    shown = shown_inputs({"x": codes}, {"x": raw})["x"]
    drawer, coords = get_drawer(shown.modality), coords_of(tokens.spans[0])
    assert np.isnan(drawer.boxes(shown, coords)).any(1).all()
    assert drawer.token_names(shown, coords) == [None] * len(coords)


def test_kept_codes_are_those_of_the_sample_and_of_the_weights(tmp_path):
    adapter, raw = picture()
    backbone = partial(Backbone, D, depth=1, num_heads=2)
    task = Codec(decoder=backbone, levels=[5, 5])
    parts = {"adapter": adapter, "fusion": EarlyFusion(D, inputs=["x"]), "task": task}
    codec = StoredCodec(input="x", size=(1, 20, 28), backbone=backbone(), **parts)
    samples = [codec.tokenizer(each) for each in (raw, 255 - raw, raw)]
    expected = codec.encode([raw, 255 - raw, raw])
    assert all(torch.equal(codec.codes(s), own) for s, own in zip(samples, expected, strict=True))
    assert len(codec._codes) == 2
    with torch.no_grad():
        codec.model.head.down.weight.neg_()
    codec.save(tmp_path / "codec.safetensors")
    codec.load(tmp_path / "codec.safetensors")
    assert torch.equal(codec.codes(samples[0]), codec.encode([raw])[0])
    assert not torch.equal(codec.codes(samples[0]), expected[0])


@pytest.mark.parametrize("size", [(0, 20, 28), (1, -8, 28), (1, 20)])
def test_a_damaged_size_of_a_stored_codec_is_refused(size):
    adapter, _ = picture()
    task = Codec(decoder=partial(Backbone, D, depth=1, num_heads=2), levels=[5, 5])
    backbone = Backbone(D, depth=1, num_heads=2)
    fusion = EarlyFusion(D, inputs=["x"])
    parts = {"adapter": adapter, "fusion": fusion, "backbone": backbone, "task": task}
    with pytest.raises(ValueError, match="size must be three positive numbers"):
        StoredCodec(input="x", size=size, **parts)


@torch.no_grad()
def test_the_terms_of_the_loss_add_up():
    task, model, batch = setting()
    output = model(batch)
    plain = task.loss(output, batch)
    task.absolute, task.edges = 0.5, 0.25
    more = task.loss(output, batch)
    assert more.weight == plain.weight
    assert more.total > plain.total


@torch.no_grad()
def test_padding_has_no_rate():
    task, model, _ = setting(series, rate=0.5)
    adapter, raw = series()
    both, *alone = (
        model(make_batch(task, {"x": adapter}, {"x": rows}))
        for rows in ([raw, raw[:15]], [raw], [raw[:15]])
    )
    torch.testing.assert_close(both.distance, torch.cat([each.distance for each in alone]))
    values = both.values
    valid = torch.ones_like(values, dtype=torch.bool)
    loss = task.loss(both, {"target": {"values": values, "valid": valid}})
    torch.testing.assert_close(loss.total, 0.5 * both.distance.sum())
    # A sample without any known value has no loss.
    valid[1] = False
    loss = task.loss(both, {"target": {"values": values, "valid": valid}})
    torch.testing.assert_close(loss.total, 0.5 * both.distance[0])


@pytest.mark.parametrize(("rate", "fewest", "most"), [(0.0, 2, 12), (100.0, 1, 1)])
def test_with_a_high_rate_noise_has_one_code(rate, fewest, most):
    task, model, batch = setting(rate=rate)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(100):
        loss = task.loss(model(batch), batch)
        optimizer.zero_grad()
        (loss.total / loss.weight).backward()
        optimizer.step()
    assert fewest <= len(model(batch).codes.unique()) <= most


@torch.no_grad()
def test_errors_that_are_the_same_everywhere_have_no_edges():
    task, model, batch = setting(clip, edges=0.25)
    output, target = model(batch), batch["target"]
    assert target["valid"].all()
    shifted = replace(output, values=target["values"] + 1)
    loss = task.loss(shifted, batch)
    assert loss.total == pytest.approx(float(loss.weight))


def ssim_of(first, second):
    """Structural similarity (Wang et al., 2004) of pictures (C, H, W), without the border."""

    def smooth(x):
        return gaussian_filter(x, 1.5, radius=5, axes=(1, 2))[:, 5:-5, 5:-5]

    a, b = smooth(first), smooth(second)
    variances = smooth(first**2) - a**2 + smooth(second**2) - b**2
    covariance = smooth(first * second) - a * b
    lights = (2 * a * b + 1e-4) / (a**2 + b**2 + 1e-4)
    return (lights * (2 * covariance + 9e-4) / (variances + 9e-4)).mean()


@torch.no_grad()
def test_the_entropy_is_that_of_the_frequencies_of_each_stage():
    task, model, batch = setting(stages=2)
    (one, *_) = task.predict(model.head, model(batch), batch)
    codes = torch.zeros(8, 2, dtype=torch.int32)
    codes[:4, 0] = torch.tensor([1, 1, 2, 3])
    found = task.metric.metrics([replace(one, codes=codes)], [None], 0.0)
    # Half, a quarter and two eighths in the first stage, and one code alone in the second one.
    assert found["entropy"] == pytest.approx((0.5 * 1 + 0.25 * 2 + 2 * 0.125 * 3) / 2)
    assert found["codes_used"] == pytest.approx((4 + 1) / 2 / 25)


@torch.no_grad()
def test_psnr_and_ssim_are_those_of_numpy():
    task, model, batch = setting()
    output, target = model(batch), batch["target"]["values"]
    noise = torch.randn(target.shape, generator=torch.Generator().manual_seed(1))
    # The first row is closer to the true values than the second one.
    noisy = target + noise * torch.tensor([0.05, 0.8])[:, None, None]
    found = task.predict(model.head, replace(output, values=noisy), batch)
    contents, metric = task.target.contents, task.metric
    true, decoded = (
        contents.natural(contents.joined(values, found[0].size))[:, 0].double().numpy()
        for values in (target, noisy)
    )
    rows = metric.rows(found, [None, None])
    # Both metrics are those of the picture that is written, whose values are limited.
    decoded = decoded.clip(0, 1)
    errors = ((true - decoded) ** 2).mean((1, 2, 3))
    expected = pytest.approx((-10 * np.log10(errors)).tolist(), rel=1e-5)
    assert metric.value(rows)["psnr"].tolist() == expected
    total = {name: float(value) for name, value in metric.value(rows.sum(0)).items()}
    assert total["psnr"] == pytest.approx(-10 * np.log10(errors.mean()), rel=1e-5)
    similar = [ssim_of(*pair) for pair in zip(true, decoded, strict=True)]
    assert total["ssim"] == pytest.approx(np.mean(similar), rel=1e-5)


@torch.no_grad()
def test_snr_divides_the_variance_by_the_squared_error():
    task, model, batch = setting(series)
    target = batch["target"]
    output = replace(model(batch), values=target["values"] * 0.9)
    found = task.predict(model.head, output, batch)
    # The error is a tenth of each deviation from the mean: 20 dB.
    value = task.metric.value(task.metric.rows(found, [None, None]))["snr"]
    assert value.tolist() == pytest.approx([20, 20], abs=1e-3)


@torch.no_grad()
def test_a_report_leaves_out_rows_whose_ratio_is_not_defined():
    task, model, batch = setting(series)
    first, second = task.predict(model.head, model(batch), batch)
    # A row that is equal to the mean of the training has no power.
    constant = replace(second, power=0.0, codes=(second.codes + 1) % 2)
    shown = {task.target.input: Shown("series", series()[1], None, name="series")}
    predictions = SimpleNamespace(predicted=[first, constant], rows=[0, 1])
    last = SimpleNamespace(predictions=predictions, truths=[None] * 2, origins=["row 1", "row 2"])
    evidence = SimpleNamespace(task=task, shown=lambda row: shown, answered=None)
    section = side_by_side(evidence, last, None, Budget())
    ((_, [row]),) = section["groups"]
    assert row["where"].startswith("row 1 · snr ")
    assert (
        "snr is not defined for 1 row with a constant value, which is left out" in section["about"]
    )


DIGITS = [
    *("data=digits", "data.num_train=60", "data.num_validation=10", "data.num_test=10"),
    *(
        *SMALL_IMAGES,
        "adapters.image.stride=null",
        "adapters.image.resize.mode=stretch",
        "head=codec",
        "head.levels=[5,5,5]",
    ),
]


def test_a_trained_codec_has_metrics(tmp_path, capsys):
    output = printed(capsys, "train", *DIGITS, f"run={tmp_path}")
    assert "public weights" not in output
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    text = json.dumps(metrics)
    for name in ("psnr", "ssim", "bits", "codes_used", "entropy"):
        assert name in text
    printed(capsys, "report", f"run={tmp_path}")
    # It has no target.
    assert ">target</th>" not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["head.rate=-1"], "head.rate: must be at least 0, got -1"),
        (["head.levels=[1,5]"], "levels must be numbers of at least 2"),
        (["adapters.image.stride=2"], "needs patches that do not overlap"),
    ],
)
def test_wrong_options_are_refused(options, message, tmp_path, capsys):
    assert message in refused(capsys, "train", *DIGITS, *options, f"run={tmp_path / 'run'}")
    assert not (tmp_path / "run" / "model").exists()


def test_another_metric_of_a_codec_can_select_the_epoch():
    metric = Codec(decoder=torch.nn.Identity).metric
    metric.monitored = "bits"
    assert metric.monitored == "bits" and metric.row == ("snr", "snr")
    assert metric.value(torch.ones(7)).keys() == {"snr", "bits"}
