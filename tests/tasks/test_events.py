"""Detection of events: classes with a start and a stop in sound, series and video."""

import json
import random
import re

import numpy as np
import pytest
import torch
from helpers.data import EXAMPLES
from helpers.newcomer import printed
from helpers.videos import write_video

from dxn.tasks import Detect
from dxn.tasks.detect.metric import Detected
from dxn.tasks.detect.objects import Objects
from dxn.tasks.detect.target import DEFAULT_THRESHOLD, to_places, to_prepared
from dxn.tokenize import AudioAdapter, AudioAugment, SeriesAdapter, VideoAdapter
from dxn.tokenize.audio.spectrogram import SpectrogramOptions
from dxn.tokenize.series.tokenizer import SeriesAugment
from dxn.tokenize.video.reader import VideoSampling
from dxn.viz.drawers import Shown, get_drawer

RATE = 8000


def clip(start=0.9, stop=1.7, seconds=3.0):
    """Return a clip with a tone at a time."""
    time = np.arange(int(seconds * RATE)) / RATE
    tone = 0.5 * np.sin(2 * np.pi * 997 * time) * ((time >= start) & (time < stop))
    return tone.astype(np.float32), RATE


def target_of(adapter, name="sound"):
    target = Detect().target
    target.labels = ("tone",)
    target.bind({name: adapter})
    return target


def sound_adapter(**options):
    return AudioAdapter(dim=8, sample_rate=RATE, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"crop": 2.0},
        {"time_shift": 0.7},
        {"speed": 0.3},
        {"crop": 2.2, "time_shift": 0.5, "speed": 0.2, "noise": 0.01},
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_events_move_with_an_augmented_clip(options, seed):
    adapter = sound_adapter(augment=AudioAugment(**options))
    target = target_of(adapter)
    raw = adapter.tokenizer.reader.read(clip())
    sample = {"sound": adapter.tokenizer(raw, random.Random(seed))}
    encoded = target.encode(Objects(("tone",), ((0.9, 1.7),)), sample)
    level = sample["sound"]["features"].amax(1)
    loud = (level > level.max() - 4).nonzero().flatten() / len(level)
    assert len(encoded["boxes"]) == 1
    expected = torch.stack([loud[0], loud[-1]])
    torch.testing.assert_close(encoded["boxes"][0], expected, atol=0.015, rtol=0)
    # The coordinates of the tokens are the seconds of the clip before augmentation.
    batch = adapter.tokenizer.collate([sample["sound"]])
    coords = adapter(batch).spans[0].coords[0]
    placement = adapter.tokenizer.placement(sample["sound"])
    ends = torch.tensor([[0.0, 1.0]])
    places = to_places(ends, placement)[0]
    torch.testing.assert_close(torch.stack([coords[0, 0], coords[-1, 1]]), places)
    torch.testing.assert_close(to_prepared(places[None], placement), ends, atol=1e-6, rtol=0)


def test_a_clip_that_is_cut_drops_and_cuts_events():
    adapter = sound_adapter(spectrogram=SpectrogramOptions(num_frames=100))
    target = target_of(adapter)
    raw = adapter.tokenizer.reader.read(clip())
    sample = {"sound": adapter.tokenizer(raw)}
    events = Objects(("tone",) * 3, ((0.2, 0.4), (0.5, 1.5), (1.2, 1.4)))
    encoded = target.encode(events, sample)
    torch.testing.assert_close(encoded["boxes"], torch.tensor([[0.2, 0.4], [0.5, 1.0]]))


def test_events_without_a_duration_are_not_used():
    target = target_of(sound_adapter())
    cell = [
        {"label": "tone", "start": 0.5, "end": 1.5},
        {"label": "tone", "start": 0.5, "end": 0.5},
        {"label": "tone", "start": -1.0, "end": 0.25},
    ]
    found = target.read(cell, "row 1", {"sound": clip()})
    assert found.boxes == ((0.5, 1.5), (0.0, 0.25))
    line = target.describe([found])
    assert "without a size inside of the input, which are not used: 1 (" in line


@pytest.mark.parametrize("options", [{}, {"crop": 0.5}, {"warp": 0.4}, {"crop": 0.4, "warp": 0.3}])
@pytest.mark.parametrize("seed", range(5))
def test_events_move_with_an_augmented_series(options, seed):
    adapter = SeriesAdapter(dim=8, patch_size=7, augment=SeriesAugment(**options))
    values = torch.zeros(211, 3)
    values[97:151] = 1
    adapter.fit([values, values + 0.1])
    target = target_of(adapter, "signal")
    sample = {"signal": adapter.tokenizer(values, random.Random(seed))}
    encoded = target.encode(Objects(("tone",), ((97.0, 151.0),)), sample)
    level = sample["signal"]["values"][:, 0]
    high = (level > level.mean()).nonzero().flatten()
    expected = torch.stack([high[0], high[-1] + 1]) / len(level)
    torch.testing.assert_close(encoded["boxes"][0], expected, atol=0.01, rtol=0)
    # The coordinates of the tokens are the steps of the series before augmentation.
    batch = adapter.tokenizer.collate([sample["signal"]])
    coords = adapter(batch).spans[0].coords[0]
    places = to_places(torch.tensor([[0.0, 1.0]]), adapter.tokenizer.placement(sample["signal"]))
    torch.testing.assert_close(torch.stack([coords[0, 0], coords[-1, 1]]), places[0])


@pytest.mark.parametrize("sampling", [{}, {"mode": "random"}, {"mode": "first"}])
@pytest.mark.parametrize("rand", [None, random.Random(1)])
def test_events_of_a_clip_are_in_seconds(sampling, rand):
    frames = np.zeros((20, 16, 16, 3), np.uint8)
    frames[3:7] = 255
    options = VideoSampling(num_frames=10, fps=4, **sampling)
    adapter = VideoAdapter(dim=8, image_size=16, patch_size=8, tubelet_frames=2, sampling=options)
    target = target_of(adapter, "clip")
    reader = adapter.tokenizer.reader
    seconds = 2.5 if sampling == {"mode": "first"} else 5.0
    assert reader.extent(frames) == (seconds,)
    cell = [{"label": "tone", "start": 0.75, "end": 1.75}, {"label": "tone", "start": 6, "end": 7}]
    found = target.read(cell, "row 1", {"clip": frames})
    assert found.boxes == ((0.75 / seconds, 1.75 / seconds),)
    assert "inside of the input, which are not used: 1 (" in target.describe([found])
    sample = {"clip": adapter.tokenizer(reader.read(frames), rand)}
    encoded = target.encode(found, sample)["boxes"]
    bright = (sample["clip"]["pixels"].float().mean((1, 2, 3)) > 127).nonzero().flatten()
    if sampling == {"mode": "random"} and not len(bright):
        assert not len(encoded)
        return
    expected = torch.stack([bright[0], bright[-1] + 1]) / 10
    torch.testing.assert_close(encoded[0], expected, atol=0.051, rtol=0)
    batch = adapter.tokenizer.collate([sample["clip"]])
    coords = adapter(batch).spans[0].coords[0]
    placement = adapter.tokenizer.placement(sample["clip"])
    ends = placement.origin, placement.origin + placement.scale
    torch.testing.assert_close(torch.stack([coords[0, 0], coords[-1, 1]]), torch.cat(ends))


def test_the_times_of_a_file_are_seconds(tmp_path):
    write_video(tmp_path / "clip.mp4", np.zeros((30, 32, 32, 3), np.uint8), fps=12)
    reader = VideoAdapter(dim=8).tokenizer.reader
    assert reader.extent(str(tmp_path / "clip.mp4")) == pytest.approx((2.5,))


def write_signals(path, count):
    """Write a table with series of 80 steps that are high in some of them."""
    rand = random.Random(0)
    lines = []
    for _ in range(count):
        values = [round(rand.gauss(0, 0.1), 3) for _ in range(80)]
        events = []
        if rand.random() < 0.7:
            start, length = rand.randrange(60), rand.randrange(12, 20)
            values[start : start + length] = [value + 2 for value in values[start : start + length]]
            events.append({"label": "high", "start": start, "stop": start + length})
        lines.append(json.dumps({"signal": values, "events": events}))
    path.write_text("\n".join(lines))


def test_a_small_model_finds_the_events_of_series(tmp_path, capsys):
    table, run = tmp_path / "signals.jsonl", tmp_path / "run"
    write_signals(table, 120)
    options = ["dim=32", "backbone.depth=1", "trainer.epochs=12", "trainer.device=cpu"]
    options += ["optimizer.lr=0.01", "batch_size=8", "adapters.series.augment.crop=0.2"]
    text = printed(capsys, "train", str(table), "target=events", *options, f"run={run}")
    assert "events (detect)" in text  # and not positions in a text
    assert json.loads((run / "metrics.json").read_text())["test/map50"] > 0.5
    answers = tmp_path / "answers.jsonl"
    printed(capsys, "predict", f"run={run}", str(table), f"output={answers}")
    objects = [
        json.loads(json.loads(line)["prediction"]) for line in answers.read_text().splitlines()
    ]
    assert {key for each in objects for item in each for key in item} == {
        *("label", "score", "start", "stop")
    }


TONES = [
    EXAMPLES,
    "data=dialled",
    "data.events=true",
    "data.num_train=300",
    "data.num_validation=20",
    "data.num_test=20",
    "data.longest=5",
    "data.corrupt=0.02",
    "head=detect",
    "adapters=[audio]",
    "adapters.audio.sample_rate=8000",
    "adapters.audio.stem=conv",
    "dim=32",
    "backbone.depth=1",
    "preset=plain",
    "baseline=none",
    "trainer.epochs=10",
    "trainer.device=cpu",
    "optimizer.lr=0.005",
    "batch_size=8",
]


@pytest.mark.exhaustive
def test_a_small_model_finds_the_tones_of_a_dialled_number(tmp_path, capsys):
    run = tmp_path / "run"
    printed(capsys, "train", *TONES, f"run={run}")
    assert json.loads((run / "metrics.json").read_text())["test/map50"] > 0.5
    # The validation split has chosen from which score on an answer contains a tone.
    assert json.loads((run / "model/labels.json").read_text())["threshold"] != DEFAULT_THRESHOLD


def test_events_end_with_their_clip():
    adapter = sound_adapter()
    target = target_of(adapter)
    events = [
        {"label": "tone", "start": a, "end": b} for a, b in ((0.9, 1.7), (2.5, 4), (900, 1700))
    ]
    value = target.read(events, "row 1", {"sound": clip()})
    assert value.boxes == ((0.9, 1.7), (2.5, 3.0))
    text = target.describe([value])
    assert "without a size inside of the input, which are not used: 1 (" in text
    assert "that are cut at the edge of the input: 1 (" in text
    series = target_of(SeriesAdapter(dim=8), "series")
    value = series.read([{"label": "tone", "start": 2, "end": 9}], "", {"series": [1.0] * 5})
    assert value.boxes == ((2.0, 5.0),)


EVENT_INPUTS = {
    "audio": (AudioAdapter, {"sample_rate": RATE}, torch.zeros(2 * RATE), "seconds"),
    "video": (VideoAdapter, {"image_size": 16}, torch.zeros(2, 3, 16, 16).byte(), "seconds"),
    "series": (SeriesAdapter, {"patch_size": 1}, torch.zeros(2, 1), "time steps"),
}


@pytest.mark.parametrize("modality", EVENT_INPUTS)
def test_true_events_are_drawn_above_the_predicted_ones(modality):
    kind, options, raw, unit = EVENT_INPUTS[modality]
    adapter = kind(dim=8, **options)
    task = Detect(threshold=0.3)
    task.target.labels = ("bell", "<b>")
    task.target.usual_size = [1.0]
    task.target.bind({"input": adapter})
    true = Objects(("bell",), ((0.5, 1.5),))
    boxes = torch.tensor([[0.0, 1.0], [0.5, 2.5], [0.0, 2.0]])
    found = Detected(torch.tensor([0, 1, 0]), torch.tensor([0.9, 0.4, 0.1]), boxes)
    marks = [mark for value in (true, found) for mark in task.marks(value, {})["input"]]
    html = get_drawer(modality).marked_fragment(Shown(modality, raw, adapter.tokenizer), marks)
    above, below = html.split('<p class="note">predicted')
    assert f'aria-label="true: bell, 0.5 to 1.5 {unit}"' in above
    assert f"bell 90%, 0 to 1 {unit}; &lt;b&gt; 40%, 0.5 to 2.5 {unit}" in below
    assert "<b>" not in html and above.count("lane") == 1
    # The predicted ones overlap, and one ends after the input.
    assert below.count("lane") == 2
    places = re.findall(r"left:([\d.]+)%;width:([\d.]+)%", html)
    expected = [(25, 50), (0, 50), (25, 75)]
    np.testing.assert_allclose(np.array(places, float), expected, atol=0.4)
