"""Decoded files: in memory up to a limit, otherwise read again, with the same samples."""

import os
import pickle
from collections import Counter

import numpy as np
import pytest
import soundfile
import torch
from helpers.data import SMALL_RATE, are_same
from PIL import Image

from dxn.core.errors import UserError
from dxn.data.dataset import Samples
from dxn.data.files import with_files
from dxn.data.inspect.check import check
from dxn.data.inspect.fingerprint import fingerprint
from dxn.data.loader import BatchOrder, Loader, LoaderOptions, default_workers
from dxn.data.raws import (
    CacheBudget,
    RawFiles,
    digest_of,
    lengths_of,
    memory_lines,
    size_of,
)
from dxn.data.reading import open_rows
from dxn.data.rows import Column, InputSpec, Rows, Source
from dxn.runs.build import open_splits
from dxn.tasks import Classify, Tag
from dxn.tokenize import (
    AudioAdapter,
    ImageAdapter,
    ImageAugment,
    SpectrogramOptions,
    TextAdapter,
    Tokenizer,
)
from dxn.tokenize.image.reader import ImageReader

SIDE = 8  # pixels of the reduced images
PICTURE_BYTES = 3 * SIDE * SIDE


class Counting(Tokenizer):
    """A tokenizer that counts which files its reader reads."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.reader = CountingReader()
        self.reader.read_image = tokenizer.reader.read
        self.reads = self.reader.reads

    def __call__(self, raw, rand=None):
        return self.tokenizer(raw, rand)

    def length(self, raw):
        return float(raw[0, 0, 0])


class CountingReader(ImageReader):
    def __init__(self):
        super().__init__()
        self.reads = Counter()

    def read(self, cell):
        self.reads[cell] += 1
        return self.read_image(cell)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(7):
        pixels = rng.integers(0, 256, (20, 20 + i, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((20, 20)).save(tmp_path / f"{i}.png")
        soundfile.write(tmp_path / f"{i}.wav", rng.normal(0, 0.1, 101 + 13 * i), SMALL_RATE)
    return tmp_path


def images():
    return ImageAdapter(8, image_size=SIDE, patch_size=4, augment=ImageAugment(flip=True)).tokenizer


def rows_of(folder, names="0123456", **columns):
    cells = {"image": [None if n == "-" else str(folder / f"{n}.png") for n in names], **columns}
    cells.setdefault("target", ["ab"[i % 2] for i in range(len(names))])
    return Rows(cells, [f"my.csv row {i + 2}" for i in range(len(names))])


def budget_for(pictures):
    return CacheBudget(pictures * PICTURE_BYTES / 1e9)


def opened_with(folder, pictures, names="0123456", **columns):
    """The opened rows and the preprocessor, with memory for a number of pictures."""
    prepare = Counting(images())
    rows = rows_of(folder, names, **columns)
    # Rows without a picture need another input.
    tokenizers = {"image": prepare, "text": TextAdapter(8).tokenizer}
    return open_rows(rows, tokenizers, budget=budget_for(pictures)), prepare


def stored(column):
    """Which values are in memory: # in memory, . on disk, - missing."""
    files = column.values
    pairs = [(files.is_missing[file], files.values[file]) for file in column.rows]
    return "".join("-" if missing else "." if value is None else "#" for missing, value in pairs)


# What is kept


@pytest.mark.parametrize(
    ("pictures", "names", "expected"),
    [
        (9, "0123456", "#######"),
        (3, "0123456", "###...."),
        (0, "0123456", "......."),
        (2, "01-2", "##-."),
        (1, "00010", "###.#"),  # rows that share a file share its memory
        (1, "1000", "#..."),
    ],
)
def test_files_are_kept_until_the_memory_is_used(folder, pictures, names, expected):
    opened, prepare = opened_with(folder, pictures, names, text=["a"] * len(names))
    assert stored(opened.raws["image"]) == expected
    assert set(prepare.reads.values()) == {1}  # each file is checked once


def test_a_file_that_is_not_in_memory_is_read_when_it_is_used(folder):
    opened, prepare = opened_with(folder, 2)
    column = opened.raws["image"]
    for i in range(7):
        assert torch.equal(column[i], images().reader.read(str(folder / f"{i}.png")))
    assert [prepare.reads[str(folder / f"{i}.png")] for i in range(7)] == [1, 1, 2, 2, 2, 2, 2]
    assert all(
        torch.equal(one, other) for one, other in zip(column[3:6], list(column)[3:6], strict=True)
    )


def test_all_splits_and_inputs_share_the_memory(folder):
    names = "0123"
    splits = {name: rows_of(folder, names) for name in ("train", "validation", "test")}
    source = Source(splits, {"image": InputSpec("image", "image")}, target="target")
    prepare = images()
    task = Classify()
    opened = open_splits(
        source, {"image": prepare}, task, loader=LoaderOptions(cache_gb=6 * PICTURE_BYTES / 1e9)
    )
    kept = {name: stored(split.raws["image"]) for name, split in opened.items()}
    assert kept == {"train": "####", "validation": "##..", "test": "...."}


def test_bytes_in_cells_count_but_are_never_dropped(folder):
    files = [(folder / f"{i}.png").read_bytes() for i in range(4)]
    rows = Rows({"image": files}, list("abcd"))
    budget = CacheBudget((sum(map(len, files)) + 2 * PICTURE_BYTES) / 1e9)
    column = open_rows(rows, {"image": images()}, budget=budget).raws["image"]
    assert stored(column) == "##.."
    assert torch.equal(column[3], images().reader.read(files[3]))
    column = open_rows(rows, {"image": images()}, budget=CacheBudget(0)).raws["image"]
    assert stored(column) == "...."


def test_inputs_that_do_not_read_files_are_read_from_their_cells():
    text = TextAdapter(8).tokenizer
    rows = Rows({"text": ["a fox", ["a", "fox"]]}, ["row 1", "row 2"])
    opened = open_rows(rows, {"text": text}, budget=CacheBudget(0))
    assert opened.raws["text"] == ["a fox", ["a", "fox"]]


def test_leaving_out_rows_reads_nothing(folder):
    (folder / "1.png").write_bytes(b"no picture")
    prepare = Counting(images())
    opened = open_rows(
        rows_of(folder, "0123"), {"image": prepare}, on_bad="skip", budget=CacheBudget(0)
    )
    assert stored(opened.raws["image"]) == "..."
    assert opened.origin == ["my.csv row 2", "my.csv row 4", "my.csv row 5"]
    assert set(prepare.reads.values()) == {1}


# What reads no file


def test_lengths_hashes_and_presence_need_no_file(folder):
    opened, prepare = opened_with(folder, 2, "01-34", text=["a"] * 5)
    complete, _ = opened_with(folder, 9, "01-34", text=["a"] * 5)
    column, expected = opened.raws["image"], complete.raws["image"]
    for row in (0, 1, 3, 4):
        assert digest_of(column, row) == digest_of(expected, row)
        (length,) = lengths_of(column, np.array([row]), prepare)
        assert length == float(expected[row][0, 0, 0])
    assert opened.present["image"].tolist() == [True, True, False, True, True]
    assert set(prepare.reads.values()) == {1}


def test_the_order_of_the_batches_needs_no_file(folder):
    opened, prepare = opened_with(folder, 0)
    samples = Samples(opened, {"image": prepare})
    complete = Samples(opened_with(folder, 9)[0], {"image": prepare})
    orders = [
        list(BatchOrder(samples_, 2, seed=3, shuffle=True)) for samples_ in (samples, complete)
    ]
    assert orders[0] == orders[1]
    assert set(prepare.reads.values()) == {1}


def test_a_task_that_ignores_the_raw_values_reads_no_file(folder):
    prepare = Counting(images())
    open_rows(rows_of(folder), {"image": prepare}, task=Classify(), budget=CacheBudget(0))
    assert set(prepare.reads.values()) == {1}


def test_tags_are_compared_with_the_words_beside_files(folder):
    rows = rows_of(folder, "01", text=[["a", "b"], ["c"]], target=[["N", "V"], ["N", "V"]])
    tokenizers = {"text": TextAdapter(8).tokenizer, "image": images()}
    opened = open_rows(rows, tokenizers, task=Tag(), on_bad="skip", budget=CacheBudget(0))
    assert opened.origin == ["my.csv row 2"]


def test_the_check_reads_each_file_once(folder, monkeypatch):
    monkeypatch.setattr("dxn.data.inspect.check.CacheBudget", lambda: CacheBudget(0))
    prepare = Counting(images())
    splits = {"train": rows_of(folder, "0012"), "test": rows_of(folder, "23")}
    source = Source(splits, {"image": InputSpec("image", "image")}, target="target")
    report = check(source, {"image": prepare}, task=Classify())
    assert report.duplicates == {"train": 1, "test": 0}
    assert "image: 4; all 20×20" in [line.strip() for line in report.lines()]  # of the originals
    assert prepare.reads[str(folder / "0.png")] == 1
    assert prepare.reads[str(folder / "2.png")] == 2  # once for each split


# Determinism


def tokenizers_of_all():
    spectrogram = SpectrogramOptions(n_mels=5)
    text = TextAdapter(8, vocab_size=300).fit(["a red fox", "a blue bird"])
    audio = AudioAdapter(8, sample_rate=SMALL_RATE, spectrogram=spectrogram)
    return {"text": text.tokenizer, "image": images(), "audio": audio.tokenizer}


@pytest.mark.parametrize("num_workers", [0, 2, None])
@pytest.mark.parametrize("gigabytes", [0, 3 * PICTURE_BYTES / 1e9])
def test_samples_do_not_depend_on_the_memory_and_the_workers(folder, gigabytes, num_workers):
    sounds = [str(folder / f"{n}.wav") for n in "0123456"]
    rows = rows_of(folder, "01-3355", text=["a red fox"] * 7, audio=sounds)
    tokenizers = tokenizers_of_all()
    task = Classify()
    task.target.fit(["a", "b"])

    def batches(budget, workers):
        opened = open_rows(rows, tokenizers, task=task, budget=budget)
        samples = Samples(opened, tokenizers, task=task, seed=7, augment=True)
        order = BatchOrder(samples, 3, seed=7, shuffle=True)
        return list(Loader(order, num_workers=workers))

    expected = batches(CacheBudget(), 0)
    got = batches(CacheBudget(gigabytes), num_workers)
    assert len(got) == len(expected) == 3
    assert all(are_same(one, other) for one, other in zip(got, expected, strict=True))


def test_columns_are_picklable_and_need_no_file_for_it(folder):
    opened, prepare = opened_with(folder, 2)
    column = pickle.loads(pickle.dumps(opened.raws["image"]))
    assert stored(column) == "##....."
    assert set(prepare.reads.values()) == {1}
    assert torch.equal(column[5], opened.raws["image"][5])


# Files that change


def replace(path):
    Image.new("RGB", (9, 9)).save(path)


def touch(path):
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("change", [os.remove, replace, touch])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_changed_file_stops_with_one_sentence(folder, change, num_workers):
    opened, prepare = opened_with(folder, 0)
    change(folder / "3.png")
    with pytest.raises(UserError) as caught:
        list(Loader(BatchOrder(Samples(opened, {"image": prepare}), 2), num_workers=num_workers))
    assert str(caught.value) == (
        f"image: {folder / '3.png'} was changed or deleted after it had been checked; "
        "run the command again"
    )


def test_a_changed_file_that_is_in_memory_is_not_read(folder):
    opened, prepare = opened_with(folder, 9)
    replace(folder / "3.png")
    samples = Samples(opened, {"image": prepare})
    assert len(list(Loader(BatchOrder(samples, 2)))) == 4


# Files of which only the header is read


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def opened_partly(folder, on_bad="error", *, only_headers=True, tokenizer=None):
    tokenizers = {"image": tokenizer or images()}
    options = {"budget": CacheBudget(0), "on_bad": on_bad, "only_headers": only_headers}
    return open_rows(rows_of(folder, "0123456"), tokenizers, **options), tokenizers


def batches_of(opened, tokenizers, num_workers=0, *, shuffle=False):
    order = BatchOrder(Samples(opened, tokenizers), 3, shuffle=shuffle)
    return list(Loader(order, num_workers=num_workers))


@pytest.mark.parametrize(("only_headers", "decoded"), [(False, 7), (True, 0)])
def test_files_that_do_not_fit_are_decoded_or_their_headers_are_read(folder, only_headers, decoded):
    tokenizer = images()
    reads = Counter()
    read = tokenizer.reader.read
    tokenizer.reader.read = lambda cell: reads.update([cell]) or read(cell)
    opened, tokenizers = opened_partly(folder, only_headers=only_headers, tokenizer=tokenizer)
    assert len(reads) == decoded
    expected = batches_of(*opened_partly(folder, only_headers=False))
    pairs = zip(batches_of(opened, tokenizers), expected, strict=True)
    assert all(are_same(one, other) for one, other in pairs)


def test_a_header_tells_the_length_of_a_value(folder):
    for name, tokenizer in tokenizers_of_all().items():
        if tokenizer.reader.files:
            for file in folder.glob("*.png" if name == "image" else "*.wav"):
                cell = str(file)
                assert tokenizer.header(cell) == tokenizer.length(tokenizer.reader.read(cell))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_file_that_turns_out_to_be_bad_is_left_out_and_counted(folder, capsys, num_workers):
    truncate(folder / "3.png")
    opened, tokenizers = opened_partly(folder, "skip")
    for _ in range(2):  # the second epoch does not count it again
        batches = batches_of(opened, tokenizers, num_workers)
        assert [batch["#index"] for batch in batches] == [[0, 1, 2], [4, 5], [6]]
        assert all("#bad" not in batch for batch in batches)
    assert list(opened.bad_later) == ["my.csv row 5"]
    assert capsys.readouterr().out.count("3.png: damaged or truncated image") == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_file_that_turns_out_to_be_bad_stops_with_one_sentence(folder, num_workers):
    truncate(folder / "3.png")
    with pytest.raises(UserError, match=r"3\.png: damaged.*; correct the data, or set on_bad"):
        batches_of(*opened_partly(folder), num_workers)


def test_a_batch_without_any_good_file_stops_with_one_sentence(folder):
    sizes = [batch["#size"] for batch in batches_of(*opened_partly(folder))]
    for file in folder.glob("*.png"):
        truncate(file)
    with pytest.raises(UserError, match="all rows of a batch are bad"):
        batches_of(*opened_partly(folder, "missing"), shuffle=True)
    # Without a training, such as for a prediction, it is empty.
    batches = batches_of(*opened_partly(folder, "missing"))
    assert [batch["#size"] for batch in batches] == [0] * len(sizes)


def test_the_fingerprint_does_not_depend_on_the_memory(folder):
    def of(gigabytes):
        options = {"budget": CacheBudget(gigabytes), "only_headers": True}
        return fingerprint({"train": open_rows(rows_of(folder), {"image": images()}, **options)})

    assert of(0) == of(3 * PICTURE_BYTES / 1e9) == of(1)


# Workers and options


def test_workers_are_started_only_if_files_are_read(folder, monkeypatch):
    monkeypatch.setattr("dxn.core.runtime.num_cores", lambda: 3)

    def workers(pictures, batch_size=1, **options):
        opened, prepare = opened_with(folder, pictures, "01234", text=["a"] * 5)
        tokenizers = {"image": prepare, "text": TextAdapter(8).tokenizer}
        return default_workers(BatchOrder(Samples(opened, tokenizers, **options), batch_size))

    assert workers(9) == 0
    assert workers(4) == 3
    assert workers(0, batch_size=3) == 2  # there are only two batches
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert workers(0) == 0  # one core per training process
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.setattr("multiprocessing.get_start_method", lambda allow_none: "spawn")
    assert workers(0) == 0


def test_samples_without_the_files_read_nothing(folder):
    rows = rows_of(folder, "01", text=["a fox", "a bird"])
    tokenizers = tokenizers_of_all()
    opened = open_rows(rows, tokenizers, budget=CacheBudget(0))
    assert Samples(opened, tokenizers).reads_files
    assert not Samples(opened, tokenizers, only=["text"]).reads_files


@pytest.mark.parametrize("options", [{"cache_gb": -0.1}, {"num_workers": -1}])
def test_negative_options_are_refused(options):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"^{name} must be at least 0, got {value}$"):
        LoaderOptions(**options)


# What is printed


def column_of(count, num_bytes, unloaded=0, source_bytes=0):
    values = [torch.zeros(1).expand(num_bytes // 4) for _ in range(count)]
    values += [None] * unloaded
    cells = [bytes(source_bytes) if i == 0 else f"{i}.png" for i in range(len(values))]
    sources = with_files(Column([*cells, None]))
    files = RawFiles("image", images(), sources)
    files.values = [*values, None]
    return Column(files, sources.rows)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([(3, 10_000_000)], []),
        ([(3, 200_000_000)], ["image: 0.6 GB in memory"]),
        ([(1, 4), (3, 200_000_000)], ["image: 0.6 GB in memory"]),
        pytest.param(
            [(1, 4, 0, 600_000_000)], ["image: 0.6 GB in memory"], marks=pytest.mark.exhaustive
        ),
        (
            [(2, 30_000_000, 2)],
            ["image: 60 MB in memory, 2 of 4 files are read again in each epoch (loader.cache_gb)"],
        ),
        (
            [(3, 200_000_000, 1500), (1, 400_000_000, 1)],
            [
                "image: 1.0 GB in memory, 1,501 of 1,505 files are read again in each epoch "
                "(loader.cache_gb)"
            ],
        ),
    ],
)
def test_much_memory_and_repeated_reading_are_printed(columns, expected):
    raws = [{"image": column_of(*column), "text": Column(["a"])} for column in columns]
    assert memory_lines(raws) == expected


def test_the_size_of_a_value_is_that_of_its_content():
    assert size_of(torch.zeros(3, 5)) == 60
    assert size_of(np.zeros(7, np.int16)) == 14
    assert size_of([torch.zeros(2), {"a": np.zeros(3, np.uint8)}]) == 11
    assert size_of("a" * 1000) >= 1000
