"""Samples: a function of seed, epoch and row; no sample sees another; inputs have names."""

import math
import pickle
import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.data import SMALL_RATE, are_same
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import BPE

from dxn.core.errors import UserError
from dxn.data.dataset import Opened, Samples
from dxn.data.loader import BatchOrder, Loader, LoaderOptions, remaining_inputs
from dxn.data.reading import open_rows
from dxn.data.rows import Rows
from dxn.data.token_windows import TokenWindows, make_samples
from dxn.tasks import IGNORED, Classify, Language, Masked, Tag, Target
from dxn.tokenize import (
    AudioAdapter,
    AudioAugment,
    ImageAdapter,
    ImageAugment,
    SpectrogramOptions,
    TextAdapter,
    TextAugment,
    TokenizerOptions,
)

TEXTS = [
    "the red fox runs",
    "a blue bird",
    "the bird and the fox and the red sun go home",
    "blue",
    "red sun, blue sun",
]
INPUTS = ("text", "image", "audio")


@pytest.fixture(scope="module")
def adapters():
    """Adapters of all modalities, whose tokenizers all augment."""
    text = TextAdapter(8, vocab_size=300, max_len=31, augment=TextAugment(token_dropout=0.3))
    augment = ImageAugment(crop=3, flip=True)
    image = ImageAdapter(8, image_size=None, patch_size=2, augment=augment)
    audio = AudioAdapter(
        8,
        sample_rate=SMALL_RATE,
        spectrogram=SpectrogramOptions(n_mels=5),
        augment=AudioAugment(noise=0.3, time_shift=0.05),
    )
    fitted = {"text": text.fit(TEXTS), "image": image, "audio": audio}
    for name in ("image", "audio"):
        cells = make_rows().cells[name]
        fitted[name].fit([fitted[name].tokenizer.reader.read(cell) for cell in cells])
    return fitted


@pytest.fixture(scope="module")
def tokenizers(adapters):
    return {name: adapter.tokenizer for name, adapter in adapters.items()}


def picture(i):
    shape = (5 + i % 3, 7 + i % 5, 3)
    return np.random.default_rng(i).integers(0, 256, shape, dtype=np.uint8)


def sound(i):
    return np.random.default_rng(i).normal(0, 0.1, 101 + 13 * (i % 5)).astype(np.float32)


def make_rows(count=11, lacking=()):
    """Rows with all inputs, except for the cells (input, row) that are lacking."""
    cells = {
        "text": [f"{TEXTS[i % 5]} {i}" for i in range(count)],
        "image": [picture(i) for i in range(count)],
        "audio": [(sound(i), SMALL_RATE) for i in range(count)],
        "target": ["ab"[i % 2] for i in range(count)],
    }
    for name, i in lacking:
        cells[name][i] = None
    return Rows(cells, [f"my.csv row {i + 2}" for i in range(count)])


def classify():
    task = Classify()
    task.target.fit(["a", "b"])
    return task


def samples_of(tokenizers, rows=None, *, task=None, **options):
    task = task or classify()
    opened = open_rows(rows or make_rows(), tokenizers, task=task, on_bad="missing")
    return Samples(opened, tokenizers, task=task, **options)


# A sample depends on seed, epoch and row only


def test_a_sample_is_the_same_in_any_order_and_from_any_instance(tokenizers):
    keys = [(epoch, i) for epoch in range(3) for i in range(11)]
    options = {"seed": 7, "augment": True, "input_dropout": 0.3}
    samples = samples_of(tokenizers, **options)
    first = {key: samples[key] for key in keys}
    random.Random(0).shuffle(keys)
    torch.manual_seed(12345)
    random.seed(54321)
    again = samples_of(tokenizers, **options)
    for key in keys:
        assert are_same(again[key], first[key])


def test_augmentation_differs_between_epochs_seeds_and_rows(tokenizers):
    samples = samples_of(tokenizers, seed=7, augment=True)
    other = samples_of(tokenizers, seed=8, augment=True)
    for name in INPUTS:
        assert any(not are_same(samples[0, i][name], samples[1, i][name]) for i in range(11))
        assert any(not are_same(samples[0, i][name], other[0, i][name]) for i in range(11))
    rows = make_rows()
    equal = Rows({**rows.cells, "audio": [(sound(0), SMALL_RATE)] * 11}, rows.origin)
    samples = samples_of(tokenizers, equal, seed=7, augment=True)
    assert not are_same(samples[0, 0]["audio"], samples[0, 1]["audio"])


def test_without_augmentation_nothing_is_random(tokenizers):
    samples = samples_of(tokenizers, seed=7, input_dropout=0.9)
    other = samples_of(tokenizers, seed=8)
    for i in range(11):
        assert are_same(samples[0, i], samples[5, i])
        assert are_same(samples[0, i], other[0, i])
        assert all(name in samples[0, i] for name in INPUTS), "dropped in validation"


def test_a_sample_does_not_change_global_generators(tokenizers):
    samples = samples_of(tokenizers, seed=7, augment=True, input_dropout=0.3)
    random.seed(3)
    before = torch.get_rng_state(), random.getstate()
    for i in range(11):
        samples[0, i]
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


@pytest.mark.parametrize("make_task", [classify, "masked"])
def test_workers_make_the_batches_of_the_main_process(adapters, tokenizers, make_task):
    task = masked_task(adapters) if make_task == "masked" else make_task()

    def batches(num_workers):
        samples = samples_of(tokenizers, task=task, seed=7, augment=True, input_dropout=0.3)
        order = BatchOrder(samples, 3, seed=7, shuffle=True)
        return list(Loader(order, num_workers=num_workers))

    here, there = batches(0), batches(2)
    assert len(here) == len(there) == 4
    assert all(are_same(a, b) for a, b in zip(here, there, strict=True))


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("token_dropout", [0.0, 0.3])
def test_a_batch_equals_its_collated_samples(tokenizers, augment, token_dropout):
    text = TextAdapter(8, vocab_size=300, augment=TextAugment(token_dropout=token_dropout))
    prepare = {**tokenizers, "text": text.fit(TEXTS).tokenizer}
    rows = make_rows(lacking=[("text", 2), ("image", 3)])
    samples = samples_of(prepare, rows, augment=augment, input_dropout=0.3, seed=7)
    batch = samples.batch(1, [3, 2, 7, 0])
    reference = samples.collate([samples[1, i] for i in (3, 2, 7, 0)])
    # Texts are encoded together, without coordinates.
    coords = batch["text"].pop("coords"), reference["text"].pop("coords")
    assert are_same(batch, reference)
    assert coords[0].isnan().all()
    assert coords[0].shape == coords[1].shape


def test_augmented_texts_are_encoded_together_if_no_other_input_draws_numbers():
    text = TextAdapter(8, vocab_size=300, augment=TextAugment(token_dropout=0.3))
    samples = samples_of({"text": text.fit(TEXTS).tokenizer}, augment=True, seed=7)
    batch = samples.batch(1, [3, 2, 7, 0])
    reference = samples.collate([samples[1, i] for i in (3, 2, 7, 0)])
    assert batch["text"].pop("coords").isnan().all()
    assert not reference["text"].pop("coords").isnan().all()
    assert are_same(batch, reference)


def test_a_task_that_changes_the_inputs_gets_prepared_ones(adapters):
    task = Masked()
    task.target.bind({"text": adapters["text"]})
    samples = samples_of({"text": adapters["text"].tokenizer}, task=task)
    batch = samples.batch(0, [0, 1])
    assert are_same(batch, samples.collate([samples[0, 0], samples[0, 1]]))
    assert "masked" in batch["text"]


def test_a_sample_does_not_depend_on_its_batch(adapters, tokenizers):
    samples = samples_of(tokenizers, task=masked_task(adapters), seed=7, augment=True)
    alone = [samples.collate([samples[0, i]]) for i in range(11)]
    together = samples.collate([samples[0, i] for i in range(11)])
    for i, batch in enumerate(alone):
        ids = batch["text"]["ids"][0]
        assert torch.equal(together["text"]["ids"][i, : len(ids)], ids)
        masked = batch["text"]["masked"][0]
        assert torch.equal(together["text"]["masked"][i, : len(ids)], masked)


def test_samples_are_picklable(tokenizers):
    samples = samples_of(tokenizers, seed=7, augment=True)
    assert are_same(pickle.loads(pickle.dumps(samples))[1, 3], samples[1, 3])


# Input dropout


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(INPUTS), min_size=1, unique=True),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 10**6),
)
def test_dropping_inputs_keeps_their_order_and_at_least_one(present, probability, seed):
    kept = remaining_inputs(present, probability, random.Random(seed))
    assert kept
    assert kept == [name for name in present if name in kept]
    if probability == 0:
        assert kept == present


def test_each_input_is_dropped_as_often_as_requested():
    rand, count = random.Random(0), 4000
    kept = Counter(name for _ in range(count) for name in remaining_inputs(INPUTS, 0.3, rand))
    # Kept with 0.7, and in a third of the 0.3**3 cases in which all would have been dropped; the
    # tolerance is 4 standard deviations.
    expected, tolerance = 0.7 + 0.3**3 / 3, 4 * (0.7 * 0.3 / count) ** 0.5
    assert all(abs(kept[name] / count - expected) < tolerance for name in INPUTS)
    draws = (remaining_inputs(INPUTS, 1 - 1e-9, rand) for _ in range(count))
    alone = Counter(name for names in draws for name in names)
    assert all(abs(alone[name] / count - 1 / 3) < tolerance for name in INPUTS)


def test_the_draw_of_dropped_inputs_is_the_one_of_earlier_versions():
    rand = random.Random(5)
    draws = ["".join(name[0] for name in remaining_inputs(INPUTS, 0.5, rand)) for _ in range(8)]
    assert draws == ["tia", "tia", "a", "ti", "a", "t", "ia", "i"]


def test_input_dropout_shows_every_combination_in_training(tokenizers):
    samples = samples_of(tokenizers, seed=7, augment=True, input_dropout=0.5)
    shown = set()
    for epoch in range(5):
        for i in range(11):
            sample = samples[epoch, i]
            shown.add(frozenset(name for name in INPUTS if name in sample))
    assert frozenset() not in shown
    assert len(shown) == 7  # all subsets of three inputs but the empty one
    rows = make_rows(2, [("image", 0), ("audio", 0)])
    lacking = samples_of(tokenizers, rows, augment=True, input_dropout=0.999)
    assert all("text" in lacking[epoch, 0] for epoch in range(7)), "its only input"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_inputs_are_dropped_in_the_epochs_of_the_order_that_say_so(tokenizers, num_workers):
    options = {"seed": 7, "augment": True, "input_dropout": 0.9}
    samples = samples_of(tokenizers, **options)
    order = BatchOrder(samples, len(samples))
    loader = Loader(order, num_workers=num_workers)
    counts = []
    for order.drop_inputs in (True, True, False):
        [batch] = loader
        counts.append([len(batch[name]["rows"]) for name in INPUTS if name in batch])
    assert sum(counts[0]) < 2 * len(samples) and counts[1] == counts[0]
    assert counts[2] == [len(samples)] * 3


def test_a_required_input_is_never_dropped_and_rows_without_it_are_not_used(adapters, tokenizers):
    task = Tag()
    task.target.bind(adapters)
    task.target.fit([["N", "V"]])
    cells = {
        "text": [["a", "fox"], None, ["red"]],
        "image": [picture(i) for i in range(3)],
        "target": [["N", "V"], ["N"], ["V"]],
    }
    rows = Rows(cells, ["row 1", "row 2", "row 3"])
    samples = samples_of(tokenizers, rows, task=task, augment=True, input_dropout=0.9)
    assert samples.rows.tolist() == [0, 2]
    assert all("text" in samples[epoch, i] for epoch in range(7) for i in range(2))
    assert any("image" not in samples[epoch, 0] for epoch in range(7))


# Missing inputs and subsets


def test_a_missing_input_has_no_entry_and_the_batch_says_which_samples_have_it(tokenizers):
    lacking = [("image", 0), ("image", 2), ("audio", 1), ("text", 3), ("audio", 4), ("image", 4)]
    samples = samples_of(tokenizers, make_rows(5, lacking))
    items = [samples[0, i] for i in range(5)]
    present = ["".join(name[0] for name in INPUTS if name in item) for item in items]
    assert present == ["ta", "ti", "ta", "ia", "t"]
    batch = samples.collate(items)
    assert batch["#size"] == 5
    assert batch["#index"] == [0, 1, 2, 3, 4]
    assert batch["target"].tolist() == [0, 1, 0, 1, 0]
    rows = {name: batch[name]["rows"].tolist() for name in INPUTS}
    assert rows == {"text": [0, 1, 2, 4], "image": [1, 3], "audio": [0, 2, 3]}
    # Only real pictures, each at its own place: no empty picture, and not the neighbor's.
    pixels = batch["image"]["pixels"]
    assert len(pixels) == 2
    for position, row in enumerate([1, 3]):
        height, width = batch["image"]["sizes"][position].tolist()
        own = pixels[position, :, :height, :width].movedim(0, -1)
        assert torch.equal(own, torch.tensor(picture(row)))
    for position, row in enumerate([0, 2, 3]):
        own = samples[0, row]["audio"]["features"]
        assert torch.equal(batch["audio"]["features"][position, : len(own)], own)


def test_an_input_that_no_sample_of_the_batch_has_is_not_in_it(tokenizers):
    samples = samples_of(tokenizers, make_rows(3, [("image", 0), ("image", 1)]))
    assert "image" not in samples.collate([samples[0, 0], samples[0, 1]])
    batch = samples.collate([samples[0, 0], samples[0, 2]])
    assert batch["image"]["rows"].tolist() == [1]


def test_only_some_inputs_can_be_used_and_rows_without_them_are_left_out(tokenizers):
    rows = make_rows(5, [("image", 1), ("image", 3)])
    samples = samples_of(tokenizers, rows, only=["image"])
    assert [samples[0, i]["#index"] for i in range(len(samples))] == [0, 2, 4]
    assert set(samples[0, 1]) == {"image", "#index", "target"}
    assert [samples[0, i]["target"].item() for i in range(3)] == [0, 0, 0]
    # The augmentation of a row does not depend on which other rows are used.
    subset = samples_of(tokenizers, rows, only=["image"], seed=7, augment=True)
    complete = samples_of(tokenizers, make_rows(5), only=["image"], seed=7, augment=True)
    assert are_same(subset[0, 1], complete[0, 2])


def test_several_inputs_of_one_modality_are_prepared_by_name(tokenizers):
    cells = {"front": [picture(0), picture(1)], "back": [picture(2), None], "target": ["a", "b"]}
    image = tokenizers["image"]
    samples = samples_of({"front": image, "back": image}, Rows(cells, ["row 1", "row 2"]))
    batch = samples.collate([samples[0, 0], samples[0, 1]])
    assert batch["front"]["rows"].tolist() == [0, 1]
    assert batch["back"]["rows"].tolist() == [0]
    height, width = batch["back"]["sizes"][0].tolist()
    own = batch["back"]["pixels"][0, :, :height, :width].movedim(0, -1)
    assert torch.equal(own, torch.tensor(picture(2)))


def test_a_few_samples_of_all_can_be_kept_to_overfit_them(tokenizers):
    samples = samples_of(tokenizers)
    whole = len(samples)
    samples.keep(3)
    assert len(samples) == 3
    rows = [samples[0, i]["#index"] for i in range(3)]
    assert rows == sorted(set(rows)) and rows[0] < whole / 3 and rows[2] >= whole * 2 // 3


# Lengths


def task_with(target):
    """A task of which only the target is used."""
    return SimpleNamespace(target=target, is_supervised=True)


class Long(Target):
    """Targets that have a length."""

    def length(self, value):
        return len(value)


def test_the_length_of_a_sample_is_that_of_its_inputs(tokenizers):
    samples = samples_of(tokenizers, make_rows(3, [("image", 1), ("audio", 1)]))
    raws = samples.opened.raws
    assert samples.lengths()[1] == tokenizers["text"].length(raws["text"][1])
    total = sum(tokenizers[name].length(raws[name][2]) for name in INPUTS)
    assert samples.lengths()[2] == pytest.approx(total)


def test_the_length_of_a_sample_is_that_of_a_longer_target():
    texts, targets = ["a b c", "a b c", "a"], ["d", "defgh", "defghi"]
    text = TextAdapter(8, tokenizer=TokenizerOptions(kind="word")).fit(texts).tokenizer
    opened = Opened({"text": texts}, targets, ["row"] * 3)
    samples = Samples(opened, {"text": text}, task=task_with(Long()))
    assert samples.lengths().tolist() == [3, 5, 6]


# Targets


def test_samples_without_a_task_have_no_target(tokenizers):
    samples = Samples(open_rows(make_rows(3), tokenizers), tokenizers)
    assert "target" not in samples[0, 0]
    assert "target" not in samples.collate([samples[0, 0], samples[0, 1]])


def test_samples_with_incomplete_targets_have_none(tokenizers):
    rows = make_rows(3)
    rows = Rows({**rows.cells, "target": ["a", None, "b"]}, rows.origin)
    task = classify()
    opened = open_rows(rows, tokenizers, task=task, need_target=False)
    samples = Samples(opened, tokenizers, task=task)
    assert not any("target" in samples[0, i] for i in range(3))


def test_the_tag_of_a_word_is_the_target_of_its_first_token():
    text = TextAdapter(8, vocab_size=300, max_len=31).fit(["ab abc"])
    task = Tag()
    task.target.bind({"text": text})
    task.target.fit([["N", "V"]])
    rows = Rows(
        {"text": [["ab", "qrst", "ab"], ["ab"]], "target": [["N", "V", "N"], ["new"]]},
        ["row 1", "row 2"],
    )
    samples = samples_of({"text": text.tokenizer}, rows, task=task)
    batch = samples.collate([samples[0, 0], samples[0, 1]])
    words = batch["text"]["words"]
    assert batch["target"].shape == words.shape
    for row, tags in enumerate([[0, 1, 0], [IGNORED]]):
        seen = []
        pairs = zip(words[row].tolist(), batch["target"][row].tolist(), strict=True)
        for word, tag in pairs:
            assert tag == (tags[word] if word >= 0 and word not in seen else IGNORED)
            seen.append(word)
    assert words[0].tolist().count(1) > 1, "the test needs a word of several tokens"


class Recording(Target):
    """A target that is the random number it is offered."""

    def encode(self, value, sample, rand=None):
        return torch.tensor(0.0 if rand is None else rand.random())


class RecordingAlways(Recording):
    random = True


def drawn(tokenizers, task, **options):
    """The random number of every sample in each of two epochs."""
    samples = samples_of(tokenizers, task=task, seed=7, **options)
    return [[samples[epoch, i]["target"].item() for i in range(11)] for epoch in range(2)]


def test_a_task_gets_randomness_in_training_only(tokenizers):
    assert drawn(tokenizers, task_with(Recording())) == [[0.0] * 11] * 2
    first, second = drawn(tokenizers, task_with(Recording()), augment=True)
    assert len({*first, *second}) == 22


def test_a_task_that_is_random_in_validation_gets_the_same_in_every_epoch(tokenizers):
    first, second = drawn(tokenizers, task_with(RecordingAlways()))
    assert first == second
    assert len(set(first)) == 11
    training, next_epoch = drawn(tokenizers, task_with(RecordingAlways()), augment=True)
    assert len({*first, *training, *next_epoch}) == 33


# Masks


def masked_task(adapters):
    task = Masked()
    task.target.bind(adapters)
    return task


def masks(samples, epoch):
    return [samples[epoch, i]["text"]["masked"].tolist() for i in range(11)]


def test_masks_are_the_same_in_every_epoch_of_validation(adapters, tokenizers):
    samples = samples_of(tokenizers, task=masked_task(adapters), seed=7)
    assert masks(samples, 0) == masks(samples, 5)
    other = samples_of(tokenizers, task=masked_task(adapters), seed=8)
    assert masks(samples, 0) != masks(other, 0)


def test_masks_differ_between_epochs_of_training(adapters, tokenizers):
    samples = samples_of(tokenizers, task=masked_task(adapters), seed=7, augment=True)
    assert masks(samples, 0) == masks(samples, 0) != masks(samples, 1)


def test_masked_batches_hold_their_targets_in_the_inputs(adapters, tokenizers):
    samples = samples_of(tokenizers, task=masked_task(adapters), seed=7, augment=True)
    batch = samples.collate([samples[0, i] for i in range(11)])
    assert "target" not in batch
    for name in INPUTS:
        count = int(batch[name]["masked"].sum())
        assert count > 0
        assert len(batch[name]["masked_target"]) == count


# The choice of samples, and options


def test_the_task_decides_between_samples_and_a_stream(adapters, tokenizers):
    opened = open_rows(make_rows(), tokenizers)
    language = Language()
    language.target.bind({"text": adapters["text"]})
    only = {"text": tokenizers["text"]}
    assert type(make_samples(language, opened, only, seed=3)) is TokenWindows
    # With other inputs, each row is a text of its own.
    assert type(make_samples(language, opened, tokenizers, seed=3)) is Samples
    samples = make_samples(
        classify(),
        opened,
        tokenizers,
        seed=3,
        input_dropout=0.5,
        only=["text", "audio"],
    )
    assert type(samples) is Samples
    assert (samples.seed, samples.input_dropout) == (3, 0.5)
    assert samples.inputs == ["text", "audio"]


def test_a_sample_is_named_by_its_origin_and_its_files(adapters, tmp_path):
    path = str(tmp_path / "7.png")
    Image.fromarray(picture(0)).save(path)
    cells = {"text": ["", "a red fox", "blue"], "image": [None, path, picture(1)]}
    rows = Rows(cells, ["train.csv row 2", "train.csv row 5", "train.csv row 6"])
    prepare = {name: adapters[name].tokenizer for name in cells}
    samples = Samples(open_rows(rows, prepare, on_bad="skip"), prepare)
    assert [samples.describe(i) for i in range(len(samples))] == [
        f"train.csv row 5 ({path})",
        "train.csv row 6",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_dropout": 1.0}, r"^input_dropout must be below 1, got 1\.0$"),
        ({"input_dropout": -0.1}, r"^input_dropout must be at least 0, got -0\.1$"),
        ({"num_workers": -1}, r"^num_workers must be at least 0, got -1$"),
        ({"overfit": -1}, r"^overfit must be at least 0, got -1$"),
        ({"timeout": 0}, r"^timeout must be greater than 0, got 0$"),
        ({"timeout": math.nan}, r"^timeout must be a finite number, got nan$"),
        ({"timeout": math.inf}, r"^timeout must be a finite number, got inf$"),
    ],
)
def test_invalid_loader_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LoaderOptions(**options)


def test_a_sample_without_any_token_is_an_error_that_names_its_row():
    vocabulary = Tokenizer(BPE({"r": 0, "e": 1, "d": 2}, []))  # drops all other letters
    adapter = TextAdapter(8)
    adapter.use_vocabulary(vocabulary)
    tokenizers = {"text": adapter.tokenizer}
    rows = Rows({"text": ["red", "sun"]}, ["t.csv row 2", "t.csv row 3"])
    samples = Samples(open_rows(rows, tokenizers), tokenizers)
    assert samples.batch(0, [0])["#size"] == 1
    with pytest.raises(UserError, match=r"^t\.csv row 3: its inputs have no tokens"):
        samples.batch(0, [0, 1])
