"""Streams: every row once per epoch for any processes and workers, positions, bad shards."""

import gc
import gzip
import io
import tarfile
import weakref
from dataclasses import replace
from itertools import islice
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
import torch
from helpers.data import by_modality
from helpers.hub import offline
from helpers.shards import COLORS, SIZES, served, write_parquet, write_tars
from helpers.shards import rows_of as picture_rows

from dxn.core.errors import UserError
from dxn.data import hub as read_hub
from dxn.data.reading import open_rows
from dxn.data.rows import as_column
from dxn.data.sources.shards import SHARD_ROWS, read_tars, to_columns
from dxn.data.splits.split import without_unlabeled
from dxn.data.streaming import StreamedSamples
from dxn.tasks import Classify
from dxn.tokenize import ImageAdapter, ImageAugment, TextAdapter
from dxn.training.predict import name_rows

B = 4  # samples per batch
TARGETS = {"tar": "label.txt", "parquet": "color"}


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory):
    with offline(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """The name of the files of each format."""
    folder = tmp_path_factory.mktemp("shards")
    return {
        "tar": write_tars(folder / "tar"),
        "parquet": write_parquet(folder / "parquet"),
    }


def source_of(name, **options):
    target = TARGETS.get(name.rpartition(".")[2])
    values = {"target": target, "shuffle_buffer": 9, **options}
    return read_hub(name, readers=by_modality(), streaming=True, **values)


def samples_of(source, *, workers=0, augment=True):
    """The training samples of a source."""
    task = Classify()
    text = TextAdapter(8, vocab_size=100)
    image = ImageAdapter(8, image_size=None, patch_size=4, augment=ImageAugment(crop=2))
    tokenizers = {"txt": text.tokenizer, "png": image.tokenizer}
    opened = open_rows(source.splits["train"], tokenizers, task=task)
    text.fit(opened.raws["txt"])
    image.fit(opened.raws["png"])
    task.target.fit(opened.targets)
    object.__setattr__(opened, "num_workers", workers)
    return StreamedSamples(opened, tokenizers, task=task, source=source, seed=3, augment=augment)


def loader_of(samples, *, shard=(0, 1), ahead=1, is_any=bool):
    return samples.loader(
        B * shard[1], seed=3, shard=shard, pin_memory=False, ahead=ahead, is_any=is_any
    )


def rows_of(batches):
    return [row for batch in batches for row in batch["#index"]]


def every_row(source):
    rows = {shard * SHARD_ROWS + row for shard, size in enumerate(SIZES) for row in range(size)}
    return sorted(rows - set(source.stream.held_out.tolist()))


@pytest.fixture(scope="module")
def source(names):
    return source_of(names["tar"])


@pytest.fixture(scope="module")
def samples(source):
    return samples_of(source)


@pytest.mark.parametrize(("processes", "workers"), [(1, 0), (1, 3), (2, 3), (5, 0), (7, 0)])
def test_every_row_is_read_once_by_any_number_of_processes_and_workers(source, processes, workers):
    samples = samples_of(source, workers=workers)
    row_numbers = []
    for process in range(processes):
        loader = loader_of(samples, shard=(process, processes))
        row_numbers += rows_of(loader)
        loader.stop()
    assert sorted(row_numbers) == every_row(source)


def test_an_epoch_has_its_own_order_of_files_and_of_rows(samples):
    orders = []
    for epoch in (0, 1):
        loader = loader_of(samples)
        loader.order.epoch = epoch
        orders.append(rows_of(loader))
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert rows_of(loader_of(samples)) == orders[0]
    # Rows of several files are shuffled together.
    assert len({row // SHARD_ROWS for row in orders[0][:9]}) > 1


def until_checkpoint(samples, done, *, process, processes):
    """The rows of the first batches of a process, and its position after them."""
    # A process without rows stays in step with the others.
    loader = loader_of(samples, shard=(process, processes), is_any=lambda has_rows: True)
    batches = islice(loader, done)
    before = rows_of(batch for batch in batches if not batch.get("#filler"))
    return before, loader.order.position(done)


@pytest.mark.parametrize("processes", [1, 5])
def test_a_resumed_epoch_repeats_no_row_and_loses_at_most_the_shuffle_buffer(source, processes):
    samples = samples_of(source)
    for done in (1, 2):
        both = [
            until_checkpoint(samples, done, process=process, processes=processes)
            for process in range(processes)
        ]
        position = {name: torch.stack([p[name] for _, p in both]) for name in both[0][1]}
        row_numbers = [row for before, _ in both for row in before]
        for process in range(processes):
            loader = loader_of(samples, shard=(process, processes))
            assert loader.order.restore(done, position)
            loader.order.skip = done
            row_numbers += rows_of(loader)
        assert len(row_numbers) == len(set(row_numbers))
        # Each process has a buffer of 9 rows, and up to 5 shards are read at the same time.
        assert len(every_row(source)) - len(row_numbers) <= processes * (9 + 5)


def test_an_abandoned_epoch_ends_without_the_garbage_collector(samples):
    # The collector can run anywhere, also where joining the threads of a reader never ends.
    gc.disable()
    try:
        loader = loader_of(samples)
        next(iter(loader))
        reader = weakref.ref(loader.order._readers[0])
        del loader
        assert reader() is None
    finally:
        gc.enable()


def test_a_checkpoint_after_the_last_batch_ends_the_epoch(samples):
    loader = loader_of(samples)
    done = len(list(loader))
    position = {name: rows[None] for name, rows in loader.order.position(done).items()}
    resumed = loader_of(samples)
    assert resumed.order.restore(done, position)
    assert len(resumed.order) == done
    resumed.order.skip = done
    assert list(resumed) == []


def test_a_resumed_epoch_continues_after_more_batches_than_estimated(source):
    few = len(source.stream.held_out) + 2 * B
    samples = samples_of(replace(source, stream=replace(source.stream, num_shard_rows=few)))
    assert len(loader_of(samples).order) == 2
    loader = loader_of(samples)
    positions = [loader.order.position(done) for done, _ in enumerate(loader, 1)]
    # The rows of the last batches can all be in the shuffle buffer, so that none is left.
    for done in (2, len(positions) - 3, len(positions) - 1):
        resumed = loader_of(samples)
        position = {name: rows[None] for name, rows in positions[done - 1].items()}
        assert resumed.order.restore(done, position)
        assert len(resumed.order) > done
        resumed.order.skip = done
        left = list(resumed)
        assert len(resumed.order) == done + len(left)


def test_a_position_is_for_the_same_number_of_workers_only(source, samples):
    loader = loader_of(samples)
    position = {name: rows[None] for name, rows in loader.order.position(0).items()}
    assert loader_of(samples).order.restore(1, position)
    assert not loader_of(samples_of(source, workers=3)).order.restore(1, position)
    assert not loader_of(samples).order.restore(1, {})


def test_the_length_is_exact_before_the_last_step(source):
    ahead = 3
    samples = samples_of(source, workers=3)
    loader = loader_of(samples, ahead=ahead)
    total = len(list(loader_of(samples)))
    for done, _ in enumerate(loader):
        left = len(loader.order) - done
        assert left >= 1
        if total - done <= ahead:
            assert left == total - done
    assert len(loader.order) == total


def test_a_process_without_rows_keeps_the_others_in_step(samples):
    """Another process has five more batches than this one."""
    total = len(list(loader_of(samples)))
    answers = iter([True] * (total + 5) + [False])
    batches = list(loader_of(samples, is_any=lambda own: next(answers)))
    assert [bool(batch.get("#filler")) for batch in batches] == [False] * total + [True] * 5


def test_batches_can_be_divided(samples):
    whole = loader_of(samples)
    divided = loader_of(samples)
    divided.order.parts = 3
    parts = list(divided)
    assert len(parts) == 3 * len(list(whole))
    assert sorted(rows_of(p for p in parts if not p.get("#filler"))) == every_row(samples.source)


def test_the_files_give_a_sample_and_the_number_of_rows(names):
    source = source_of(names["tar"], sample_rows=12, fractions=(0.5, 0.5))
    assert {split: len(rows) for split, rows in source.splits.items()} == {
        "train": 6,
        "validation": 6,
    }
    assert (source.stream.num_rows, source.stream.is_exact) == (sum(SIZES) - 6, True)
    assert len(source.stream.held_out) == 6
    files = {source.splits["train"].origin.file(i).name for i in range(6)}
    assert len(files) > 2
    some = source_of(names["tar"], sample_rows=12, sample_shards=2)
    assert not some.stream.is_exact
    assert any("drawn from 2 of 5 files" in note for note in some.notes)


def write_table(folder, rows, name="part"):
    """Write rows as two Parquet files, and return their name."""
    folder.mkdir(exist_ok=True)
    for number in range(2):
        table = pyarrow.Table.from_pylist(rows[number::2])
        pyarrow.parquet.write_table(table, folder / f"{name}-{number}.parquet")
    return f"{folder}/{name}-{{0..1}}.parquet"


def streamed_texts(source):
    """The texts of the rows that a training reads in an epoch."""
    return [row["cells"]["text"] for row in source.stream.rows(seed=0)]


def test_rows_of_other_splits_are_never_trained_on(tmp_path):
    """A column names the split of each row, also of those that are not in the sample."""
    splits = ["train", "train", "train", "dev", "test"]
    rows = [
        {"text": f"{splits[i % 5]} words {i}", "label": "ab"[i % 2], "split": splits[i % 5]}
        for i in range(300)
    ]
    name = write_table(tmp_path, rows)
    source = source_of(name, target="label", sample_rows=40)
    assert set(source.splits) == {"train", "validation", "test"}
    texts = streamed_texts(source)
    assert sorted(texts) == sorted(row["text"] for row in rows if row["split"] == "train")
    assert not source.stream.is_exact
    whole = source_of(name, target="label", sample_rows=1000)
    assert (whole.stream.num_rows, whole.stream.is_exact) == (180, True)
    # Without a validation split, some of the training rows of the sample are one.
    some = source_of(
        write_table(tmp_path, [row for row in rows if row["split"] != "dev"], "two"),
        target="label",
        sample_rows=100,
    )
    held_out = set(some.splits["validation"].cells["text"])
    assert held_out
    assert sorted([*streamed_texts(some), *held_out]) == sorted(texts)


def test_a_sample_without_a_training_row_is_refused(tmp_path):
    """Otherwise the column would be unknown, and the stream would train on test rows."""
    rows = [{"text": f"words {i}", "label": "ab"[i % 2], "split": "test"} for i in range(40)]
    name = write_table(tmp_path, rows)
    with pytest.raises(UserError, match="because column split has only test; set a larger number"):
        source_of(name, target="label")


def test_files_of_splits_that_a_column_contradicts_are_noted(tmp_path):
    rows = [
        {"text": f"words {i}", "label": "ab"[i % 2], "split": ["train", "test"][i % 10 == 0]}
        for i in range(60)
    ]
    source = source_of(
        write_table(tmp_path, rows),
        validation=write_table(tmp_path, rows[:20], "other"),
        target="label",
    )
    words = "splits: from the files, not from column split, which names another split in 26 rows"
    assert words in source.notes


def test_a_validation_split_that_is_made_of_training_rows_is_not_trained_on(tmp_path):
    rows = [{"text": f"words {i}", "label": "ab"[i % 2]} for i in range(100)]
    hidden = [{"text": f"other words {i}", "label": None} for i in range(20)]
    source = source_of(
        write_table(tmp_path, rows),
        validation=write_table(tmp_path, hidden, "hidden"),
        target="label",
    )
    source = without_unlabeled(source, {"fractions": [0.8, 0.1, 0.1]})
    held_out = set(source.splits["validation"].cells["text"])
    assert len(held_out) == 10
    assert sorted([*streamed_texts(source), *held_out]) == sorted(row["text"] for row in rows)
    assert source.stream.num_rows == 90


def test_rows_of_parquet_files_are_those_of_tar_files(names):
    tar, parquet = (source_of(names[form]) for form in ("tar", "parquet"))
    both = []
    for source in (tar, parquet):
        found = {}
        for batch in loader_of(samples_of(source, augment=False)):
            for i, row in enumerate(batch["#index"]):
                tensors = batch["png"].items()
                image = {k: v[i].tolist() for k, v in tensors if isinstance(v, torch.Tensor)}
                found[row] = image, int(batch["target"][i])
        both.append(found)
    common = both[0].keys() & both[1].keys()
    assert len(common) > 30
    assert all(both[0][row][1] == both[1][row][1] for row in common)
    assert all(str(both[0][row][0]) == str(both[1][row][0]) for row in common)


@pytest.mark.parametrize(("form", "query"), [("tar", "?signature=a.b&expires=1"), ("parquet", "")])
def test_files_are_streamed_from_a_server(names, form, query):
    folder, _, files = names[form].rpartition("/")
    # A tar file is read from the first to the last byte.
    with served(folder, parts=form == "parquet") as url:
        source = source_of(f"{url}/{files}{query}", target=TARGETS[form])
        found = rows_of(loader_of(samples_of(source, workers=2)))
    assert sorted(found) == every_row(source)


def test_a_local_folder_and_other_splits_are_streamed(names):
    folder = names["tar"].rpartition("/")[0]
    two = source_of(f"{folder}/part-00.tar", validation=f"{folder}/part-01.tar")
    assert list(two.splits) == ["train", "validation"]
    whole = read_hub(folder, readers=by_modality(), streaming=True, target="label.txt")
    assert whole.stream.num_rows == sum(SIZES) - len(whole.stream.held_out)


def test_a_compressed_tar_file_is_streamed(names, tmp_path):
    folder = Path(names["tar"]).parent
    packed = tmp_path / "part.tar.gz"
    packed.write_bytes(gzip.compress((folder / "part-00.tar").read_bytes()))
    rows = source_of(str(packed), target="label.txt").stream.num_rows
    assert rows == source_of(f"{folder}/part-00.tar").stream.num_rows


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "must be a data set of the hub, a folder, or files that end in .tar, .tar.gz"),
        ("table.csv", "files that end in .tar, .tar.gz, .tgz, .parquet, got 'table.csv'"),
        ("none-*.tar", "data.name: no file matches none-*.tar (current directory: "),
        ("part-{09..00}.tar", "a range must begin with its lower end, got part-{09..00}.tar"),
        ("first.tar", "there are no rows in 1 file of 1"),
        ("text.tar", "text.tar: the tar file has no header of a tar file; replace"),
    ],
)
def test_wrong_names_of_files_are_refused(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("a,b\n")
    Path("text.tar").write_text("no archive")
    tarfile.open("first.tar", "w").close()
    with pytest.raises(UserError) as error:
        source_of(name, target="label.txt")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def bad_shards(tmp_path, change):
    name = write_tars(tmp_path / "bad")
    file = tmp_path / "bad" / "part-02.tar"
    change(file)
    return name


def cut(file):
    file.write_bytes(file.read_bytes()[:5000])


def damage(file):
    content = bytearray(file.read_bytes())
    content[4096:4608] = b"\x01" * 512
    file.write_bytes(content)


def empty(file):
    file.write_bytes(b"")


def compress(file):
    file.write_bytes(gzip.compress(file.read_bytes()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (cut, "part-02.tar: the tar file is cut off"),
        (damage, "part-02.tar: the tar file is damaged at byte "),
        (empty, "part-02.tar: the tar file is cut off"),
        (compress, "part-02.tar: the tar file is compressed, and its name must end in .tar.gz"),
        (lambda file: file.unlink(), "cannot be loaded (Unable to find"),
    ],
    ids=["cut", "damaged", "empty", "compressed", "missing"],
)
def test_a_bad_tar_file_is_named(tmp_path, change, words):
    with pytest.raises(UserError) as error:
        source_of(bad_shards(tmp_path, change))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def write_members(file, members):
    """Write a tar file of members: their names and contents."""
    with tarfile.open(file, "w") as archive:
        for name, content in members:
            content = content if isinstance(content, bytes) else content.encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file


def members_of(keys, picture="png", label="cls"):
    rows = picture_rows(0, len(keys))
    return [
        member
        for key, row in zip(keys, rows, strict=True)
        for member in ((f"{key}.{picture}", row["png"]), (f"{key}.{label}", row["color"]))
    ]


@pytest.mark.parametrize("streaming", [True, False])
def test_any_cell_of_a_tar_file_can_be_empty_and_formats_of_one_kind_are_one_column(
    tmp_path, streaming
):
    keys = [f"a/x.y/{i:03}" for i in range(20)]
    write_members(tmp_path / "0.tar", members_of(keys, "jpeg")[1:])  # the first has no picture
    write_members(tmp_path / "1.tar", members_of(keys[:12], "jpg"))
    write_members(tmp_path / "2.tar", members_of(keys[:9], "PNG", "CLS")[:-1])
    write_members(tmp_path / "3.tar", [])
    source = read_hub(
        f"{tmp_path}/*.tar",
        readers=by_modality(),
        streaming=streaming,
        target="cls",
        on_bad="missing",
        fractions=None,
    )
    assert {name: spec.column for name, spec in source.inputs.items()} == {"jpeg": "jpeg"}
    (rows,) = source.splits.values()
    assert len(rows) == 41
    assert sum(cell is None for cell in rows.cells["jpeg"]) == 1
    assert sum(cell is None for cell in rows.cells["target"]) == 1
    assert any("jpeg and jpg and png: one column, jpeg" in note for note in source.notes)
    assert "train: 1 file without rows (3.tar)" in source.notes


def test_a_tar_file_that_is_not_in_the_sample_has_the_columns_of_the_sample(tmp_path):
    keys = [f"{i:03}" for i in range(20)]
    write_members(tmp_path / "0.tar", members_of(keys, "jpeg"))
    write_members(tmp_path / "1.tar", members_of(keys, "png")[1:])
    source = source_of(f"{tmp_path}/*.tar", target="cls", sample_shards=1, fractions=None)
    cells = [row["cells"] for row in source.stream.rows(seed=0)]
    assert {tuple(row) for row in cells} == {("cls", "png", "__key__")}
    assert sum(row["png"] is None for row in cells) == 1
    write_members(tmp_path / "0.tar", [("1.jpeg", b"x"), ("1.png", b"y")])
    with pytest.raises(UserError, match="1: has jpeg and png, but no row of the sample has both"):
        list(source.stream.rows(seed=0))


def test_a_mask_next_to_each_photo_is_another_column(tmp_path):
    file = write_members(tmp_path / "0.tar", [("1.jpg", b"x"), ("1.png", b"y"), ("2.jpg", b"z")])
    assert [*read_tars([file]).columns] == ["jpg", "png", "__key__"]


def test_new_rows_have_the_column_of_the_training_whatever_their_format(tmp_path):
    file = write_members(tmp_path / "0.tar", [("1.jpeg", b"x"), ("2.json", '{"a": {"b": 3}}')])
    table = read_tars([file], ["png"])
    assert {name: list(column) for name, column in table.columns.items()} == {
        "png": [b"x", None],
        "json.a.b": [None, 3],
        "__key__": ["1", "2"],
    }


def test_the_keys_of_tar_files_are_no_input(tmp_path):
    keys = [f"{i % 20:03}" for i in range(40)]
    for number in range(2):
        write_members(tmp_path / f"{number}.tar", members_of(keys[:20]))
    source = source_of(f"{tmp_path}/*.tar", target="cls")
    assert [*source.inputs] == ["png"]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (members_of([f"v1.2_{i}" for i in range(20)]), "the suffix of a file is everything after"),
        ([("1.png", b"x"), ("2.png", b"x"), ("1.cls", "a")], "0.tar: 1.cls is in the archive away"),
        ([("1.png", b"x"), ("1.png", b"x")], "0.tar: 1.png is in the archive twice"),
        ([("LICENSE", "text")], "no file in it is part of a row, such as LICENSE"),
        ([("1.txt", b"\xe4")], "0.tar: 1.txt: byte 0xe4 is not valid UTF-8"),
        ([("1.json", '{"a": ')], "0.tar: 1.json: damaged JSON"),
        ([("1.txt.gz", gzip.compress(b"text")[:-9])], "1.txt.gz: damaged or truncated gzip file"),
        ([], "0.tar: there are no rows"),
    ],
    ids=["dots", "apart", "twice", "no suffix", "encoding", "json", "gzip", "empty"],
)
def test_wrong_rows_of_tar_files_are_named_in_plain_words(tmp_path, members, words):
    with pytest.raises(UserError) as error:
        read_tars([write_members(tmp_path / "0.tar", members)])
    assert words in str(error.value)


def test_a_cut_tar_file_with_a_suffix_in_upper_case_is_named(tmp_path):
    write_tars(tmp_path / "bad")
    file = (tmp_path / "bad" / "part-02.tar").rename(tmp_path / "a.TAR")
    cut(file)
    with pytest.raises(UserError, match=r"a\.TAR: the tar file is cut off"):
        read_tars([file])


def test_a_cut_tar_file_on_a_server_is_named(tmp_path):
    files = bad_shards(tmp_path, cut).rpartition("/")[2]
    with served(tmp_path / "bad") as url, pytest.raises(UserError) as error:
        source_of(f"{url}/{files}")
    assert "/part-02.tar: the tar file is cut off; replace the file" in str(error.value)


def test_a_bad_parquet_file_is_named(tmp_path):
    name = write_parquet(tmp_path / "bad")
    file = tmp_path / "bad" / "part-03.parquet"
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(UserError, match=r"part-03\.parquet: cannot be read \("):
        source_of(name)


def write_columns(folder, *files):
    """Write Parquet files with a text and a label next to these columns, and return their name."""
    for number, columns in enumerate(files):
        size = len(next(iter(columns.values()), range(20)))
        texts = {"text": [f"words {i}" for i in range(size)], "label": [*"ab"] * (size // 2)}
        pyarrow.parquet.write_table(pyarrow.table(texts | columns), folder / f"{number}.parquet")
    return f"{folder}/*.parquet"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"x": pyarrow.nulls(20)}, {"x": [*range(20)]}, {None, 1}),
        ({"x": [*range(20)]}, {"x": [i + 0.5 for i in range(20)]}, {1, 1.5}),
        ({"x": [*range(20)]}, {"x": [f"x{i}" for i in range(20)]}, {"1", "x1"}),
        ({}, {"x": [*range(20)]}, {None, 1}),
        ({"x": pyarrow.array([], "int64")}, {"x": [*range(20)]}, {1}),
    ],
    ids=["no value", "float", "text", "lacking", "no rows"],
)
@pytest.mark.parametrize("streaming", [True, False])
def test_parquet_files_can_have_other_types_of_a_column(
    tmp_path, first, second, expected, streaming
):
    source = read_hub(
        write_columns(tmp_path, first, second),
        readers=by_modality(),
        streaming=streaming,
        target="x",
        on_bad="missing",
        fractions=None,
    )
    (rows,) = source.splits.values()
    found = {
        cell
        for text, cell in zip(rows.cells["text"], rows.cells["target"], strict=True)
        if text == "words 1"
    }
    assert found == expected


def test_columns_of_parquet_files_that_contradict_each_other_are_named(tmp_path):
    with pytest.raises(UserError) as error:
        source_of(write_columns(tmp_path, {"x": [True] * 20}, {"x": [*range(20)]}), target="x")
    assert "column 'x' has the type bool in 0.parquet and the type int64 in 1.parqu" in str(
        error.value
    )
    for number, names in enumerate((["cat", "dog"], ["dog", "cat"])):
        features = datasets.Features(
            text=datasets.Value("string"), x=datasets.ClassLabel(names=names)
        )
        rows = datasets.Dataset.from_dict({"text": ["a"], "x": [0]}, features=features)
        rows.to_parquet(tmp_path / f"{number}.parquet")
    with pytest.raises(UserError, match=r"classes cat, dog in 0\.parquet and the classes dog, cat"):
        source_of(f"{tmp_path}/*.parquet", target="x")


def test_a_file_that_is_lost_later_is_named(tmp_path):
    name = write_tars(tmp_path / "lost")
    samples = samples_of(source_of(name))
    (tmp_path / "lost" / "part-04.tar").unlink()
    with pytest.raises(UserError, match=r"part-04\.tar: cannot be read after row 0"):
        list(loader_of(samples))


def unknown_class(tmp_path, **options):
    """A source whose sample lacks the class of one row."""
    source = source_of(write_tars(tmp_path / "unknown"), **options)
    samples = samples_of(source)
    rare = COLORS[0]
    samples.task.target.fit([color for color in COLORS if color != rare])
    return samples


def test_a_class_that_the_sample_lacks_is_a_bad_row(tmp_path, capsys):
    with pytest.raises(UserError) as error:
        list(loader_of(unknown_class(tmp_path)))
    assert "the target 'red' is in no row of the sample" in str(error.value)
    assert " row " in str(error.value)
    found = rows_of(loader_of(unknown_class(tmp_path, on_bad="skip")))
    assert 20 < len(found) < sum(SIZES) - 10
    assert "left out" in capsys.readouterr().out


def test_bad_pictures_are_left_out_or_named(tmp_path, capsys, monkeypatch):
    """Also if all rows of a batch are bad."""
    source = source_of(write_tars(tmp_path / "pictures"), on_bad="skip")
    samples = samples_of(source)
    pieces = source.stream.shards.pieces

    def damaged(shard):
        for piece in pieces(shard):
            cells = [b"no picture" if shard == 4 else cell for cell in piece.columns["png"]]
            columns = {**piece.columns, "png": as_column(cells)}
            yield replace(piece, columns=columns)

    monkeypatch.setattr(source.stream.shards, "pieces", damaged)
    found = rows_of(loader_of(samples))
    assert sorted(found) == [row for row in every_row(source) if row // SHARD_ROWS != 4]
    assert "warning: part-04.tar row " in capsys.readouterr().out
    samples.source = replace(source, on_bad="error")
    with pytest.raises(UserError, match=r"part-04\.tar row \d+: png: .*set data\.on_bad=skip"):
        rows_of(loader_of(samples))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": "colour"}, "data.target: no column 'colour'"),
        ({"group": "txt"}, "data.group: cannot be combined with data.streaming"),
        ({"image": "photo"}, "data.image: no column 'photo'"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_wrong_options_are_refused(names, options, words):
    with pytest.raises(UserError, match=words):
        source_of(names["tar"], **options)


def test_the_columns_of_the_format_are_the_last_candidates_for_the_target(names):
    source = source_of(names["tar"], target=None)
    assert source.candidates[-1] == "__key__"
    assert not source.candidates[0].startswith("__")


def test_other_splits_need_files(names):
    folder = names["tar"].rpartition("/")[0]
    with pytest.raises(UserError, match=r"data\.validation: needs files in data\.name too"):
        read_hub(folder, readers=by_modality(), streaming=True, validation="more.tar")


def test_the_fields_of_objects_are_columns():
    features = {"json": {"label": datasets.ClassLabel(names=list(COLORS)), "size": "int64"}}
    columns = to_columns(features, {"json": [{"label": 2, "size": 7}, None]})
    assert {name: list(column) for name, column in columns.items()} == {
        "json.label": ["blue", None],
        "json.size": [7, None],
    }


def test_rows_of_a_stream_are_named(samples):
    """Their samples cannot be read again to find the values that are not finite."""
    rows = rows_of(loader_of(samples))[:2]
    names = [samples.describe_index(row) for row in rows]
    assert name_rows(samples, 0, rows) == f"batch with {', '.join(names)}"


def test_the_samples_of_a_row_do_not_depend_on_its_batch(source):
    """Augmentation draws from the number of the row."""
    both = []
    for workers in (0, 3):
        found = {}
        for batch in loader_of(samples_of(source, workers=workers)):
            values = next(
                v
                for v in batch["png"].values()
                if isinstance(v, torch.Tensor) and v.is_floating_point()
            )
            found |= dict(zip(batch["#index"], values, strict=True))
        both.append(found)
    assert all(torch.equal(value, both[1][row]) for row, value in both[0].items())
    assert sorted(both[0]) == every_row(source)
