"""Data sets in the layout of the Hugging Face hub, from local folders: no network."""

import io
import json
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import soundfile
from helpers.data import SMALL_RATE, by_modality, cells_in_order, column_names, sizes, task_of
from helpers.hub import offline
from helpers.media import read_audio, read_image
from PIL import Image

from dxn.core.errors import UserError
from dxn.data import hub as read_hub

TEXTS = [f"text of number {i}" for i in range(11)]


@pytest.fixture(autouse=True)
def _offline(tmp_path):
    with offline(tmp_path / "cache"):
        yield


@pytest.fixture
def home(tmp_path):
    (tmp_path / "my set").mkdir()
    return tmp_path / "my set"


def hub(*names, **options):
    return read_hub(*names, readers=by_modality(), **options)


def save(place, features=None, **columns):
    """Write a Parquet file with features as the hub's own library writes them."""
    datasets.Dataset.from_dict(columns, features=features).to_parquet(place)


def test_class_numbers_become_names(home):
    features = datasets.Features(
        text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"])
    )
    numbers = [1, 0, 0, 1, -1, None, 0, 1, 0, 1, 0]
    save(home / "train.parquet", features, text=TEXTS, label=numbers)
    source = hub(str(home))
    names = [{0: "bad", 1: "good"}.get(number) for number in numbers]
    assert cells_in_order(source, "target") == names
    assert cells_in_order(source, "text") == TEXTS
    assert source.target == "label"
    assert task_of(source) == "classify"


def test_lists_of_class_numbers_become_tags(home):
    tag = datasets.List(datasets.ClassLabel(names=["N", "V"]))
    tokens = datasets.List(datasets.Value("string"))
    words = [["Ann", "sleeps"], ["rain"], ["Bob", "eats", "fish"]]
    features = datasets.Features(tokens=tokens, tags=tag)
    save(home / "train.parquet", features, tokens=words, tags=[[0, 1], [0], [0, 1, 0]])
    source = hub(str(home), target="tags")
    assert cells_in_order(source, "tokens") == words
    assert cells_in_order(source, "target") == [["N", "V"], ["N"], ["N", "V", "N"]]
    assert task_of(source) == "tag"


def test_pictures_stay_encoded(home):
    pixels = []
    for i in range(5):
        shape = (5, 7 + i, 3)
        pixels.append(np.random.default_rng(i).integers(0, 256, shape, dtype=np.uint8))
        folder = home / "train" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[i]).save(folder / f"{i}.png")
    source = hub(str(home))
    assert column_names(source) == {"image": "image"}
    cells = cells_in_order(source, "image")
    assert all(isinstance(cell, bytes | Path) for cell in cells)
    targets = cells_in_order(source, "target")
    found = {}
    for cell, name in zip(cells, targets, strict=True):
        found[read_image(cell).numpy().tobytes()] = name
    assert found == {p.transpose(2, 0, 1).tobytes(): "ab"[i % 2] for i, p in enumerate(pixels)}


def test_a_damaged_picture_is_loaded_nevertheless(home):
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("string"))
    broken = [
        {"bytes": b"\x89PNG broken", "path": None},
        None,
        {"bytes": b"\x89PNG too", "path": None},
    ]
    save(home / "train.parquet", features, image=broken, label=["a", "b", "a"])
    cells = cells_in_order(hub(str(home), image="image"), "image")
    assert cells == [b"\x89PNG broken", None, b"\x89PNG too"]


def test_sounds_stay_encoded(home):
    def encoded(i):
        file = io.BytesIO()
        noise = np.random.default_rng(i).normal(0, 0.1, 101 + i)
        soundfile.write(file, noise, SMALL_RATE, format="WAV")
        return {"bytes": file.getvalue(), "path": f"{i}.wav"}

    # Written by hand: the hub's library would need another package to write sounds.
    rows = {"sound": [encoded(i) for i in range(3)], "label": [f"name {i}" for i in range(3)]}
    features = {"sound": {"_type": "Audio"}, "label": {"dtype": "string", "_type": "Value"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    columns = pyarrow.table(rows).replace_schema_metadata(metadata)
    pyarrow.parquet.write_table(columns, home / "train.parquet")
    source = hub(str(home))
    assert column_names(source) == {"sound": "sound"}
    assert cells_in_order(source, "target") == ["name 0", "name 1", "name 2"]
    sounds = [read_audio(c, sample_rate=SMALL_RATE) for c in cells_in_order(source, "sound")]
    assert [len(sound) for sound in sounds] == [101, 102, 103]


def test_named_columns_and_other_options_are_used(home):
    lines = [f"head {i},body {i},{i / 2}" for i in range(11)]
    (home / "train.csv").write_text("title,body,price\n" + "\n".join(lines) + "\n")
    source = hub(str(home), text=["body", "title"], target="price", on_bad="skip")
    assert column_names(source) == {"body": "body", "title": "title"}
    assert source.on_bad == "skip"
    assert cells_in_order(source, "title")[10] == "head 10"
    assert cells_in_order(source, "target")[3] == 1.5
    assert task_of(source) == "regress"


def test_splits_with_known_names_are_used_and_others_are_noted(home):
    counts = {"train": 5, "validation": 3, "test": 2, "unsupervised": 7}
    for name, count in counts.items():
        save(home / f"{name}.parquet", text=TEXTS[:count], label=["a"] * count)
    files = "".join(f"  - split: {name}\n    path: {name}.parquet\n" for name in counts)
    card = f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}---\n"
    (home / "README.md").write_text(card)
    source = hub(str(home))
    assert sizes(source.splits) == {"train": 5, "validation": 3, "test": 2}
    assert source.splits["test"].origin == ["test row 1", "test row 2"]
    assert "not used: split unsupervised" in source.notes


def test_a_single_split_is_divided_into_three(home):
    save(home / "train.parquet", text=TEXTS[:10], label=["a"] * 10)
    source = hub(str(home), fractions=(0.5, 0.2, 0.3), seed=3)
    assert sizes(source.splits) == {"train": 5, "validation": 2, "test": 3}
    assert hub(str(home), fractions=(0.5, 0.2, 0.3), seed=3).splits == source.splits


def test_a_configuration_is_chosen_by_its_name(home):
    for name in ("en", "de"):
        (home / name).mkdir()
        texts = [f"{name} {text}" for text in TEXTS]
        save(home / name / "train.parquet", text=texts, label=["a"] * 11)
    configs = ""
    for name in ("en", "de"):
        configs += f"- config_name: {name}\n  data_files: {name}/train.parquet\n"
    (home / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    source = hub(str(home), config="de")
    assert cells_in_order(source, "text")[0] == "de text of number 0"
    with pytest.raises(UserError, match=r"cannot be loaded \(Config name is missing"):
        hub(str(home))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_folder_of_save_to_disk_has_no_rows_of_its_caches(home, streaming):
    rows = datasets.Dataset.from_dict({"text": TEXTS, "label": ["a"] * 11})
    for name, content in (("one", rows), ("several", datasets.DatasetDict(train=rows))):
        content.save_to_disk(home / name)
        datasets.load_from_disk(home / name).map(lambda row: {"text": row["text"] + "!"})
        source = hub(str(home / name), streaming=streaming, fractions=None)
        assert cells_in_order(source, "text") == TEXTS


def is_one_sentence(error):
    return "\n" not in str(error) and len(str(error)) < 420


@pytest.mark.parametrize(
    "name",
    ["nobody/nothing-of-this-name", "nothing-of-this-name", "a name that cannot be/one/at all"],
)
def test_an_unknown_name_is_one_sentence(name):
    with pytest.raises(UserError) as caught:
        hub(name)
    assert str(caught.value).startswith(f"data.name: {name} cannot be loaded (")
    assert is_one_sentence(caught.value)


def test_an_empty_folder_and_a_damaged_file_are_one_sentence(home):
    expected = r"^data\.name: .*my set cannot be loaded \(.+\)$"
    with pytest.raises(UserError, match=expected) as caught:
        hub(str(home))
    assert is_one_sentence(caught.value)
    for file, data, reason in (
        ("train.parquet", "PAR1 and no more", "Parquet magic bytes not found"),
        ("train.csv", "text,label\none,a\ntwo,b,c\n", "Expected 2 fields in line 3, saw 3"),
    ):
        (home / file).write_text(data)
        expected = rf"^data\.name: .*my set cannot be loaded.*{reason}"
        with pytest.raises(UserError, match=expected) as caught:
            hub(str(home))
        assert is_one_sentence(caught.value)
        (home / file).unlink()


def test_a_data_set_without_a_training_split_lists_its_splits(home):
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), home / "test.parquet")
    with pytest.raises(UserError) as caught:
        hub(str(home))
    assert str(caught.value) == (
        f"data.name: a training split is required, but {home} has only test"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"target": "lable"},
            "data.target: no column 'lable' in train; its columns are text, label; "
            "did you mean 'label'?",
        ),
        (
            {"title": "text"},
            "data.title: must be an option of this data source or the modality of an adapter in "
            "use; the modalities are text, image, audio",
        ),
    ],
)
def test_options_that_do_not_fit_are_explained(home, options, message):
    save(home / "train.parquet", text=TEXTS, label=["a"] * 11)
    with pytest.raises(UserError) as caught:
        hub(str(home), **options)
    assert str(caught.value) == message
