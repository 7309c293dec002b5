"""Rows to batches: what cannot be read is named, each sample is a pure function, no row sees its neighbour."""

import random
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dxn.data.rows import Rows
from dxn.data.samples import BatchOrder, Opened, Samples, first_subwords, make_loader, open_rows, withhold
from dxn.data.targets import IGNORED, Target
from dxn.errors import UserError
from dxn.tokenize import AudioAdapter, AudioAugment, ImageAdapter, ImageAugment, TargetTokenizer, train_tokenizer
from dxn.tokenize.text import TextPrepare

TEXTS = ["the red fox runs", "a blue bird", "the bird and the fox and the red sun go home", "blue", "red sun, blue sun"]
MODALITIES = ("text", "image", "audio")


@pytest.fixture(scope="module")
def prepares():
    """The prepare halves of all three modalities, all of which draw at random."""
    tokenizer = train_tokenizer(TEXTS, vocab_size=300)
    image = ImageAdapter(7, image_size=None, patch_size=2, augment=ImageAugment(crop=3, flip=True))
    audio = AudioAdapter(7, sample_rate=1000, n_mels=5, augment=AudioAugment(noise=0.3, time_shift=0.05))
    return {
        "text": TextPrepare(tokenizer, max_len=31, token_dropout=0.3),
        "image": image.prepare,
        "audio": audio.prepare,
    }


def picture(i):
    return np.random.default_rng(i).integers(0, 256, (5 + i % 3, 7 + i % 5, 3), dtype=np.uint8)


def sound(i):
    return np.random.default_rng(i).normal(0, 0.1, 101 + 13 * (i % 5)).astype(np.float32)


def make_rows(count=11, lacking=()):
    """Rows of all three modalities; lacking: the cells (modality, row) that are None."""
    cells = {
        "text": [f"{TEXTS[i % 5]} {i}" for i in range(count)],
        "image": [picture(i) for i in range(count)],
        "audio": [(sound(i), 1000) for i in range(count)],
        "target": ["ab"[i % 2] for i in range(count)],
    }
    for name, i in lacking:
        cells[name][i] = None
    return Rows(cells, [f"my.csv row {i + 2}" for i in range(count)])


def make_samples(prepares, rows=None, **options):
    opened = open_rows(rows or make_rows(), prepares, on_bad="missing")
    return Samples(opened, prepares, target=Target("class", ("a", "b")), **options)


def same(a, b):
    """Two samples or batches hold the same, to the last bit, NaN in the same places."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
    return a == b


class Lengths:
    """Stands for Samples where only the number and the lengths matter."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __len__(self):
        return len(self.sizes)

    def size(self, i):
        return self.sizes[i]


class Counting:
    """A prepare that counts what it reads."""

    def __init__(self):
        self.read_sources = Counter()

    def read(self, source):
        self.read_sources[source] += 1
        return source


# open_rows


@pytest.fixture
def files(tmp_path):
    """Pictures and sounds, one of each good, and bad ones of every sort; a row has one of each."""
    Image.fromarray(picture(0)).save(tmp_path / "good.png")
    (tmp_path / "short.png").write_bytes((tmp_path / "good.png").read_bytes()[:-41])
    (tmp_path / "none.png").write_bytes(b"")
    soundfile.write(tmp_path / "good.wav", sound(0), 1000)
    soundfile.write(tmp_path / "empty.wav", sound(0)[:0], 1000)
    return tmp_path


def media_rows(folder: Path, images, sounds, targets=None):
    def place(name):
        return name and str(folder / name)

    cells = {"image": [place(n) for n in images], "audio": [place(n) for n in sounds]}
    cells["target"] = targets or ["a"] * len(images)
    return Rows(cells, [f"my.csv row {i + 2}" for i in range(len(images))])


TOLD = "; mend it, or set data.on_bad=skip or data.on_bad=missing (dxn check lists all that is bad)"


@pytest.mark.parametrize(
    ("image", "audio", "reason"),
    [
        ("gone.png", "good.wav", r"image: {0}/gone\.png file not found"),
        ("short.png", "good.wav", r"image: {0}/short\.png damaged or truncated image \(.+\)"),
        ("none.png", "good.wav", r"image: {0}/none\.png empty file"),
        ("good.wav", "good.wav", r"image: {0}/good\.wav not an image this reads \(.+\)"),
        ("good.png", "empty.wav", r"audio: {0}/empty\.wav no samples in it"),
        ("good.png", "gone.wav", r"audio: {0}/gone\.wav file not found"),
        ("good.png", "good.png", r"audio: {0}/good\.png not a sound this reads \(.+\): .+"),
        (None, None, "nothing to learn from: no image, no audio"),
    ],
)
def test_what_cannot_be_read_stops_with_its_row_its_file_and_the_reason(files, prepares, image, audio, reason):
    rows = media_rows(files, ["good.png", image], ["good.wav", audio])
    with pytest.raises(UserError) as caught:
        open_rows(rows, prepares)
    message = str(caught.value)
    assert message.startswith("my.csv row 3: ") and message.endswith(TOLD)
    found = message.removeprefix("my.csv row 3: ").removesuffix(TOLD)
    assert re.fullmatch(reason.format(re.escape(str(files))), found), found


def test_a_text_is_not_repeated_as_if_it_were_a_file():
    prepare = TextPrepare(train_tokenizer(TEXTS, vocab_size=300), max_len=31, max_chars=13)
    rows = Rows({"text": ["a red fox and more"], "target": ["a"]}, ["my.csv row 2"])
    with pytest.raises(UserError, match=r"^my\.csv row 2: text: 18 characters, more than max_chars=13; mend it"):
        open_rows(rows, {"text": prepare})


def test_the_first_bad_row_is_named_and_the_others_counted(files, prepares):
    images = ["good.png", "good.png", "gone.png", "none.png"]
    rows = media_rows(files, images, ["good.wav", "empty.wav", "good.wav", "good.wav"], ["a", "a", "a", None])
    with pytest.raises(UserError, match=r"^my\.csv row 3: audio: .*/empty\.wav no samples in it and 3 more; mend"):
        open_rows(rows, prepares)


def test_skip_leaves_out_the_whole_row_and_counts_it(files, prepares):
    images = ["good.png", "short.png", "good.png", None, "good.png"]
    sounds = ["good.wav", "good.wav", "empty.wav", "good.wav", "good.wav"]
    opened = open_rows(media_rows(files, images, sounds, ["a", "b", "c", "d", None]), prepares, on_bad="skip")
    assert opened.origin == ["my.csv row 2", "my.csv row 5"] and opened.targets == ["a", "d"]
    assert opened.skipped == 3 and dict(opened.missing) == {"image": 1, "audio": 0}
    assert [origin for origin, _ in opened.bad] == ["my.csv row 3", "my.csv row 4", "my.csv row 6"]


def test_missing_uses_the_rest_of_a_row_and_leaves_out_only_what_has_no_rest(files, prepares):
    images = ["good.png", "short.png", "good.png", "gone.png", "good.png"]
    sounds = ["good.wav", "good.wav", "empty.wav", "gone.wav", "good.wav"]
    opened = open_rows(media_rows(files, images, sounds, ["a", "b", "c", "d", None]), prepares, on_bad="missing")
    assert opened.origin == ["my.csv row 2", "my.csv row 3", "my.csv row 4"]
    assert [raw is None for raw in opened.raws["image"]] == [False, True, False]
    assert [raw is None for raw in opened.raws["audio"]] == [False, False, True]
    assert opened.skipped == 2 and dict(opened.missing) == {"image": 1, "audio": 1} and len(opened.bad) == 5


def test_an_empty_cell_beside_a_full_one_is_no_fault(files, prepares):
    opened = open_rows(media_rows(files, ["good.png", None], [None, "good.wav"]), prepares)
    assert opened.bad == [] and opened.skipped == 0 and dict(opened.missing) == {"image": 1, "audio": 1}


def test_a_row_without_a_target_counts_only_where_one_is_needed(files, prepares):
    rows = media_rows(files, ["good.png"] * 2, ["good.wav"] * 2, ["a", None])
    with pytest.raises(UserError, match=r"^my\.csv row 3: no target; mend it"):
        open_rows(rows, prepares)
    assert open_rows(rows, prepares, need_target=False).targets == ["a", None]
    without = Rows({"image": rows.cells["image"]}, rows.origin)
    with pytest.raises(UserError, match=r"^my\.csv row 2: no target and 1 more; mend it"):
        open_rows(without, prepares)
    assert open_rows(without, prepares, need_target=False).targets is None


@pytest.mark.parametrize("on_bad", ["skip", "missing"])
def test_where_no_row_is_left_the_first_is_named_with_its_own_reason(files, prepares, on_bad):
    rows = media_rows(files, ["good.png", "gone.png"], [None, None], [None, "a"])
    with pytest.raises(UserError) as caught:
        open_rows(rows, prepares, on_bad=on_bad)
    assert str(caught.value) == "no row is left of 2: the first is my.csv row 2, no target"


def test_a_split_without_rows_is_an_error():
    with pytest.raises(UserError, match=r"^no rows$"):
        open_rows(Rows({"text": [], "target": []}, []), {"text": Counting()})


def test_a_file_is_read_once_however_many_rows_share_it():
    prepare = Counting()
    cells = ["a.png", "b.png", None, "a.png", b"bytes", b"bytes", "a.png"]
    opened = open_rows(Rows({"image": cells}, list("abcdefg")), {"image": prepare}, on_bad="skip", need_target=False)
    assert prepare.read_sources == {"a.png": 1, "b.png": 1, b"bytes": 1}
    assert opened.raws["image"] == [cell for cell in cells if cell is not None]


def test_a_bad_file_that_rows_share_is_a_fault_of_each(files, prepares):
    rows = media_rows(files, ["gone.png", "good.png", "gone.png"], ["good.wav"] * 3)
    opened = open_rows(rows, prepares, on_bad="skip")
    assert opened.origin == ["my.csv row 3"] and opened.skipped == 2


def test_a_column_that_no_adapter_reads_is_not_opened(files, prepares):
    rows = media_rows(files, ["gone.png"], ["good.wav"])
    assert list(open_rows(rows, {"audio": prepares["audio"]}).raws) == ["audio"]


# Samples


def test_a_sample_is_the_same_in_any_order_and_from_any_instance(prepares):
    keys = [(epoch, i) for epoch in range(3) for i in range(11)]
    options = {"seed": 7, "augment": True, "modality_dropout": 0.3}
    samples = make_samples(prepares, **options)
    first = {key: samples[key] for key in keys}
    random.Random(0).shuffle(keys)
    torch.manual_seed(12345)
    random.seed(54321)
    again = make_samples(prepares, **options)
    for key in keys:
        assert same(again[key], first[key])


def test_an_augmented_sample_differs_between_epochs_seeds_and_rows_of_the_same_content(prepares):
    samples = make_samples(prepares, seed=7, augment=True)
    for name in MODALITIES:
        assert any(not same(samples[0, i][name], samples[1, i][name]) for i in range(11))
        assert any(
            not same(samples[0, i][name], make_samples(prepares, seed=8, augment=True)[0, i][name]) for i in range(11)
        )
    rows = make_rows()
    alike = Rows({**rows.cells, "audio": [(sound(0), 1000)] * 11}, rows.origin)
    samples = make_samples(prepares, alike, seed=7, augment=True)
    assert not same(samples[0, 0]["audio"], samples[0, 1]["audio"])


def test_without_augment_every_epoch_is_the_same_and_nothing_is_drawn(prepares):
    samples, other = make_samples(prepares, seed=7, modality_dropout=0.9), make_samples(prepares, seed=8)
    for i in range(11):
        assert same(samples[0, i], samples[5, i]) and same(samples[0, i], other[0, i])
        assert all(name in samples[0, i] for name in MODALITIES)  # never withheld in evaluation


def test_a_sample_does_not_touch_the_generators_of_others(prepares):
    samples = make_samples(prepares, seed=7, augment=True, modality_dropout=0.3)
    random.seed(3)
    before = torch.get_rng_state(), random.getstate()
    for i in range(11):
        samples[0, i]
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()


def test_workers_make_the_batches_that_the_main_process_makes(prepares):
    def batches(num_workers):
        samples = make_samples(prepares, seed=7, augment=True, modality_dropout=0.3)
        loader = make_loader(BatchOrder(samples, 3, seed=7, shuffle=True), num_workers=num_workers)
        return list(loader)

    here, there = batches(0), batches(2)
    assert len(here) == len(there) == 4
    assert all(same(a, b) for a, b in zip(here, there, strict=True))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(MODALITIES), min_size=1, unique=True), st.floats(0, 1), st.integers(0, 10**6))
def test_withholding_keeps_the_order_and_never_the_last_goes(present, probability, seed):
    kept = withhold(present, probability, random.Random(seed))
    assert kept and kept == [m for m in present if m in kept]
    if probability == 0:
        assert kept == present
    if probability == 1:
        assert len(kept) == 1


def test_each_modality_is_withheld_as_often_as_asked():
    rng, count = random.Random(0), 4000
    found = Counter(m for _ in range(count) for m in withhold(MODALITIES, 0.3, rng))
    # Kept with 0.7, and as a third of the 0.3**3 cases in which all would have gone; 4 standard deviations of room.
    expected, room = 0.7 + 0.3**3 / 3, 4 * (0.7 * 0.3 / count) ** 0.5
    assert all(abs(found[m] / count - expected) < room for m in MODALITIES)
    alone = Counter(m for _ in range(count) for m in withhold(MODALITIES, 1.0, rng))
    assert all(abs(alone[m] / count - 1 / 3) < room for m in MODALITIES)


def test_modality_dropout_withholds_in_training_and_leaves_something(prepares):
    samples = make_samples(prepares, seed=7, augment=True, modality_dropout=0.5)
    shown = [frozenset(m for m in MODALITIES if m in samples[epoch, i]) for epoch in range(5) for i in range(11)]
    assert frozenset() not in shown and len(set(shown)) == 7  # every way of having at least one
    lacking = make_samples(prepares, make_rows(2, [("image", 0), ("audio", 0)]), augment=True, modality_dropout=1.0)
    assert all("text" in lacking[epoch, 0] for epoch in range(7))  # its only one


def test_a_missing_modality_has_no_entry_and_the_batch_says_who_has_it(prepares):
    lacking = [("image", 0), ("image", 2), ("audio", 1), ("text", 3), ("audio", 4), ("image", 4)]
    samples = make_samples(prepares, make_rows(5, lacking))
    items = [samples[0, i] for i in range(5)]
    assert ["".join(m[0] for m in MODALITIES if m in s) for s in items] == ["ta", "ti", "ta", "ia", "t"]
    batch = samples.collate(items)
    assert batch["size"] == 5 and batch["index"] == [0, 1, 2, 3, 4] and batch["target"].tolist() == [0, 1, 0, 1, 0]
    assert {m: batch[m]["rows"].tolist() for m in MODALITIES} == {
        "text": [0, 1, 2, 4],
        "image": [1, 3],
        "audio": [0, 2, 3],
    }
    # As many pictures as there are, each its owner's: no zero picture, and no neighbour's.
    assert len(batch["image"]["pixels"]) == 2
    for at, row in enumerate([1, 3]):
        height, width = batch["image"]["sizes"][at].tolist()
        assert torch.equal(batch["image"]["pixels"][at, :, :height, :width].movedim(0, -1), torch.tensor(picture(row)))
    for at, row in enumerate([0, 2, 3]):
        own = samples[0, row]["audio"]["features"]
        assert torch.equal(batch["audio"]["features"][at, : len(own)], own)


def test_a_modality_that_no_sample_of_the_batch_has_is_not_in_it(prepares):
    samples = make_samples(prepares, make_rows(3, [("image", 0), ("image", 1)]))
    assert "image" not in samples.collate([samples[0, 0], samples[0, 1]])
    assert samples.collate([samples[0, 0], samples[0, 2]])["image"]["rows"].tolist() == [1]


def test_only_the_modalities_asked_for_are_shown_and_rows_without_them_left_out(prepares):
    rows = make_rows(5, [("image", 1), ("image", 3)])
    samples = make_samples(prepares, rows, only=["image"])
    assert len(samples) == 3 and [samples[0, i]["index"] for i in range(3)] == [0, 2, 4]
    assert set(samples[0, 1]) == {"image", "index", "target"}
    assert [samples[0, i]["target"].item() for i in range(3)] == [0, 0, 0]
    # What is drawn for a row does not depend on which other rows are shown.
    one, all_of_them = (make_samples(prepares, rows, only=o, seed=7, augment=True) for o in (["image"], None))
    alone = make_samples(prepares, make_rows(5), only=["image"], seed=7, augment=True)
    assert same(one[0, 1], alone[0, 2])
    assert len(all_of_them) == 5


def test_the_size_of_a_sample_is_of_the_modalities_it_has(prepares):
    samples = make_samples(prepares, make_rows(3, [("image", 1), ("audio", 1)]))
    raws = samples.opened.raws
    assert samples.size(1) == prepares["text"].size(raws["text"][1])
    assert samples.size(2) == pytest.approx(sum(prepares[m].size(raws[m][2]) for m in MODALITIES))


def test_the_size_of_a_text_that_is_written_counts_where_it_is_longer():
    read, written = ["a b c", "a b c", "a"], ["d", "d e f g", "d e f g h"]
    prepare = TextPrepare(train_tokenizer(read, subwords="word"), max_len=31)
    target = Target.fit("text", written, TargetTokenizer(subwords="word"))
    samples = Samples(Opened({"text": read}, written, ["row"] * 3), {"text": prepare}, target=target)
    assert [samples.size(i) for i in range(3)] == [3, 5, 6]  # with the end


def test_a_sample_without_a_target_has_none(prepares):
    samples = Samples(open_rows(make_rows(3), prepares), prepares)
    assert "target" not in samples[0, 0] and "target" not in samples.collate([samples[0, 0], samples[0, 1]])


# Tags


def test_tags_stand_at_the_first_subword_of_each_word_and_are_padded_as_ignored():
    tokenizer = train_tokenizer(["ab abc"], vocab_size=300, subwords="bpe")
    prepare = {"text": TextPrepare(tokenizer, max_len=31)}
    words = [["ab", "qrst", "ab"], ["ab"]]
    opened = Opened({"text": words}, [["N", "V", "N"], ["new"]], ["row 1", "row 2"])
    samples = Samples(opened, prepare, target=Target("tags", ("N", "V")))
    batch = samples.collate([samples[0, 0], samples[0, 1]])
    owners = batch["text"]["words"]
    assert batch["target"].shape == owners.shape
    for row, tags in enumerate([[0, 1, 0], [IGNORED]]):
        seen = []
        for owner, tag in zip(owners[row].tolist(), batch["target"][row].tolist(), strict=True):
            assert tag == (tags[owner] if owner >= 0 and owner not in seen else IGNORED)
            seen.append(owner)
    assert owners[0].tolist().count(1) > 1  # "qrst" is several subwords, or this test shows nothing


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-1, 5), max_size=13).map(sorted))
def test_a_word_begins_where_its_number_first_stands(words):
    found = first_subwords(torch.tensor(words, dtype=torch.long))
    assert found.tolist() == [w >= 0 and w not in words[:i] for i, w in enumerate(words)]


def test_words_begin_anew_in_each_row():
    words = torch.tensor([[0, 0, 1, -1], [0, 1, 1, 2]])
    assert first_subwords(words).tolist() == [[True, False, True, False], [True, True, False, True]]


# BatchOrder

SIZES = st.lists(st.integers(1, 9).map(float), min_size=1, max_size=67)


@settings(max_examples=30, deadline=None)
@given(SIZES, st.integers(1, 7), st.booleans(), st.integers(0, 5))
def test_every_sample_is_in_exactly_one_batch_of_an_epoch(sizes, batch_size, shuffle, epoch):
    order = BatchOrder(Lengths(sizes), batch_size, seed=3, shuffle=shuffle)
    order.epoch = epoch
    batches = list(order)
    assert len(batches) == len(order)
    assert sorted(key for batch in batches for key in batch) == [(epoch, i) for i in range(len(sizes))]
    assert all(len(batch) <= batch_size for batch in batches)
    assert sum(len(batch) < batch_size for batch in batches) <= 1


def test_the_order_is_a_function_of_seed_and_epoch_alone():
    def order(seed, epoch, sizes=tuple(range(53))):
        found = BatchOrder(Lengths([float(s) for s in sizes]), 5, seed=seed, shuffle=True)
        found.epoch = epoch
        return [[i for _, i in batch] for batch in found]

    random.seed(1)
    first = order(3, 2)
    random.seed(2)
    torch.manual_seed(2)
    assert order(3, 2) == first
    assert order(4, 2) != first and order(3, 1) != first
    alike = order(3, 2, [1] * 53)
    assert sorted(i for batch in alike for i in batch) == list(range(53)) and alike != order(3, 1, [1] * 53)


def test_iterating_twice_gives_the_same_epoch():
    order = BatchOrder(Lengths([float(i % 7) for i in range(53)]), 5, seed=3, shuffle=True)
    assert list(order) == list(order)


def test_without_shuffling_samples_come_in_order_in_every_epoch():
    order = BatchOrder(Lengths([5.0, 1.0, 3.0, 2.0, 4.0]), 2, seed=3)
    order.epoch = 4
    assert list(order) == [[(4, 0), (4, 1)], [(4, 2), (4, 3)], [(4, 4)]]


@settings(max_examples=30, deadline=None)
@given(SIZES, st.integers(1, 5), st.integers(0, 70), st.booleans())
def test_skipping_goes_on_exactly_where_the_epoch_was_left(sizes, batch_size, skip, shuffle):
    order = BatchOrder(Lengths(sizes), batch_size, seed=3, shuffle=shuffle)
    order.epoch = 2
    whole = list(order)
    order.skip = skip
    assert list(order) == whole[skip:]


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_shards_are_disjoint_equally_long_and_all_but_a_few_batches(sizes, batch_size, count, shuffle):
    shards = [BatchOrder(Lengths(sizes), batch_size, seed=3, shuffle=shuffle, shard=(i, count)) for i in range(count)]
    parts = [list(shard) for shard in shards]
    total = -(-len(sizes) // batch_size)
    assert {len(part) for part in parts} == {total // count} == {len(shard) for shard in shards}
    keys = [key for part in parts for batch in part for key in batch]
    assert len(keys) == len(set(keys)) and len(sizes) - len(keys) <= (total % count) * batch_size
    if not shuffle:  # dealt in turn, so that together they go through the split as one process would
        assert [key for step in zip(*parts, strict=True) for batch in step for key in batch] == sorted(keys)


def test_processes_get_batches_of_like_length_at_the_same_step():
    rng = random.Random(0)
    sizes = [float(rng.randint(1, 1000)) for _ in range(3 * 50 * 5 + 11)]
    parts = [list(BatchOrder(Lengths(sizes), 5, seed=3, shuffle=True, shard=(i, 2))) for i in range(2)]
    means = [[sum(sizes[i] for _, i in batch) / len(batch) for batch in part] for part in parts]
    apart = [abs(a - b) for a, b in zip(*means, strict=True)]
    assert sorted(apart)[len(apart) // 2] < 40  # 333 for two batches drawn at random


def test_samples_of_like_length_go_together_within_a_pool_and_batches_are_shuffled():
    rng = random.Random(0)
    sizes = [float(rng.randint(1, 1000)) for _ in range(3 * 50 * 5 + 11)]  # three pools and a bit
    batches = [[sizes[i] for _, i in batch] for batch in BatchOrder(Lengths(sizes), 5, seed=3, shuffle=True)]
    spread = sum(max(b) - min(b) for b in batches) / len(batches)
    # A pool is 250 sorted numbers of a thousand: five neighbours span about 16, five at random about 667.
    assert spread < 40
    means = [sum(b) / len(b) for b in batches]
    falls = sum(a > b for a, b in pairwise(means))
    assert 0.35 < falls / len(means) < 0.65  # neither sorted up nor down
    # Of any one batch the members are not neighbours in all 761: pools are random.
    assert sorted(sizes)[:5] not in [sorted(b) for b in batches]
