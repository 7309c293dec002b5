"""Detection of events: classes with a start and a stop in sound."""

import json
import random

import numpy as np
import pytest
import torch
from helpers.newcomer import printed

from dxn.tasks.detect.objects import Objects
from dxn.tasks.detect.target import DEFAULT_THRESHOLD, DetectedObjects, to_places, to_prepared
from dxn.tokenize import AudioAdapter, AudioAugment
from dxn.tokenize.audio.spectrogram import SpectrogramOptions

RATE = 8000


def clip(start=0.9, stop=1.7, seconds=3.0):
    """Return a clip with a tone at a time."""
    time = np.arange(int(seconds * RATE)) / RATE
    tone = 0.5 * np.sin(2 * np.pi * 997 * time) * ((time >= start) & (time < stop))
    return tone.astype(np.float32), RATE


def target_of(adapter):
    target = DetectedObjects()
    target.labels = ("tone",)
    target.bind({"sound": adapter})
    return target


def sound_adapter(**options):
    return AudioAdapter(dim=8, sample_rate=RATE, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"crop": 2.0},
        {"time_shift": 0.7},
        {"speed": 0.3},
        {"tempo": 0.3},
        {"crop": 2.2, "time_shift": 0.5, "speed": 0.2, "tempo": 0.2, "noise": 0.01},
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
    assert "1 objects of all splits without a size inside of the input" in line


TONES = [
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


def test_a_small_model_finds_the_tones_of_a_dialled_number(tmp_path, capsys):
    run = tmp_path / "run"
    printed(capsys, "train", *TONES, f"run={run}")
    assert json.loads((run / "metrics.json").read_text())["test/map50"] > 0.5
    # The validation split has chosen from which score on an answer contains a tone.
    assert json.loads((run / "model/labels.json").read_text())["threshold"] != DEFAULT_THRESHOLD
