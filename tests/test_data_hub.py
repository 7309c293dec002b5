"""Data sets as the hub lays them out, from local folders: no network."""

import io
import json

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import soundfile
from PIL import Image

from dxn.data.hub import hub
from dxn.errors import UserError
from dxn.tokenize.media import read_audio, read_image


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """Whatever is looked up is looked up here, and what is prepared is written here."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    datasets.disable_progress_bars()


@pytest.fixture
def home(tmp_path):
    (tmp_path / "my set").mkdir()
    return tmp_path / "my set"


def save(place, features=None, **columns):
    """A Parquet file whose features the hub's own library wrote."""
    datasets.Dataset.from_dict(columns, features=features).to_parquet(place)


def all_rows(source, name):
    """A cell of every row of every split, in the order of the rows."""
    found = {}
    for rows in source.splits.values():
        found |= {int(o.rsplit(" ", 1)[1]): v for o, v in zip(rows.origin, rows.cells[name], strict=True)}
    return [found[row] for row in sorted(found)]


TEXTS = [f"text of number {i}" for i in range(11)]


def test_class_numbers_become_their_names(home):
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"]))
    save(home / "train.parquet", features, text=TEXTS, label=[1, 0, 0, 1, -1, None, 0, 1, 0, 1, 0])
    source = hub(str(home))
    names = ["good", "bad", "bad", "good", None, None, "bad", "good", "bad", "good", "bad"]
    assert source.target_kind == "class" and all_rows(source, "target") == names
    assert all_rows(source, "text") == TEXTS


def test_a_list_of_class_numbers_becomes_tags(home):
    tag = datasets.List(datasets.ClassLabel(names=["N", "V"]))
    features = datasets.Features(tokens=datasets.List(datasets.Value("string")), tags=tag)
    words = [["Ann", "sleeps"], ["rain"], ["Bob", "eats", "fish"]]
    save(home / "train.parquet", features, tokens=words, tags=[[0, 1], [0], [0, 1, 0]])
    source = hub(str(home), target="tags")
    assert source.target_kind == "tags" and all_rows(source, "text") == words
    assert all_rows(source, "target") == [["N", "V"], ["N"], ["N", "V", "N"]]


def test_pictures_stay_encoded_and_are_read_by_dxn(home):
    pixels = [np.random.default_rng(i).integers(0, 256, (5, 7 + i, 3), dtype=np.uint8) for i in range(5)]
    for i, picture in enumerate(pixels):
        (home / "train" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(home / "train" / "ab"[i % 2] / f"{i}.png")
    source = hub(str(home))
    assert dict(source.columns) == {"image": "image", "target": "label"}
    cells = all_rows(source, "image")
    assert all(isinstance(cell, bytes | str) for cell in cells)
    found = {
        read_image(cell).numpy().tobytes(): name for cell, name in zip(cells, all_rows(source, "target"), strict=True)
    }
    assert found == {p.transpose(2, 0, 1).tobytes(): "ab"[i % 2] for i, p in enumerate(pixels)}


def test_a_damaged_picture_is_loaded_all_the_same_and_left_to_dxn(home):
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("string"))
    broken = [{"bytes": b"\x89PNG broken", "path": None}, None, {"bytes": b"\x89PNG too", "path": None}]
    save(home / "train.parquet", features, image=broken, label=["a", "b", "a"])
    assert all_rows(hub(str(home)), "image") == [b"\x89PNG broken", None, b"\x89PNG too"]


def test_sounds_stay_encoded_and_are_read_by_dxn(home):
    def encoded(i):
        file = io.BytesIO()
        soundfile.write(file, np.random.default_rng(i).normal(0, 0.1, 101 + i), 1000, format="WAV")
        return {"bytes": file.getvalue(), "path": f"{i}.wav"}

    # Written as the hub's own Parquet files are; its library would need a further one to write sounds.
    columns = pyarrow.table({"sound": [encoded(i) for i in range(3)], "label": [f"name {i}" for i in range(3)]})
    features = {"sound": {"_type": "Audio"}, "label": {"dtype": "string", "_type": "Value"}}
    columns = columns.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(columns, home / "train.parquet")
    source = hub(str(home))
    assert dict(source.columns) == {"audio": "sound", "target": "label"}
    assert all_rows(source, "target") == ["name 0", "name 1", "name 2"]
    assert [len(read_audio(cell, sample_rate=1000)) for cell in all_rows(source, "audio")] == [101, 102, 103]


def test_a_csv_is_loaded_with_the_columns_that_are_named(home):
    lines = [f"head {i},body {i},{i / 2}" for i in range(11)]
    (home / "train.csv").write_text("title,body,price\n" + "\n".join(lines) + "\n")
    source = hub(str(home), text=["title", "body"], target="price", on_bad="skip")
    assert source.target_kind == "number" and source.on_bad == "skip"
    assert all_rows(source, "text")[10] == "head 10\nbody 10" and all_rows(source, "target")[3] == 1.5


def test_splits_by_the_hubs_names_are_taken_and_others_noted(home):
    for name, count in (("train", 5), ("validation", 3), ("test", 2), ("unsupervised", 7)):
        save(home / f"{name}.parquet", text=TEXTS[:count], label=["a"] * count)
    card = {name: f"{name}.parquet" for name in ("train", "validation", "test", "unsupervised")}
    files = "".join(f"  - split: {name}\n    path: {path}\n" for name, path in card.items())
    (home / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}---\n")
    source = hub(str(home))
    assert {name: len(rows) for name, rows in source.splits.items()} == {"train": 5, "validation": 3, "test": 2}
    assert source.splits["test"].origin == ["test row 1", "test row 2"]
    assert "not used: split unsupervised" in source.notes


def test_a_single_split_is_drawn_into_three(home):
    save(home / "train.parquet", text=TEXTS[:10], label=["a"] * 10)
    source = hub(str(home), fractions=(0.5, 0.2, 0.3), seed=3)
    assert {name: len(rows) for name, rows in source.splits.items()} == {"train": 5, "validation": 2, "test": 3}
    assert hub(str(home), fractions=(0.5, 0.2, 0.3), seed=3).splits == source.splits


def test_a_configuration_is_chosen_by_its_name(home):
    for name in ("en", "de"):
        (home / name).mkdir()
        save(home / name / "train.parquet", text=[f"{name} {t}" for t in TEXTS], label=["a"] * 11)
    configs = "".join(f"- config_name: {n}\n  data_files: {n}/train.parquet\n" for n in ("en", "de"))
    (home / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    assert all_rows(hub(str(home), config="de"), "text")[0] == "de text of number 0"
    with pytest.raises(UserError, match=r"cannot be loaded \(Config name is missing"):
        hub(str(home))


def one_sentence(error):
    return "\n" not in str(error) and len(str(error)) < 420


@pytest.mark.parametrize(
    "name", ["nobody/nothing-of-this-name", "nothing-of-this-name", "a name that cannot be/one/at all"]
)
def test_a_name_that_is_not_there_is_one_sentence(name):
    with pytest.raises(UserError) as caught:
        hub(name)
    assert str(caught.value).startswith(f"data.name: {name} cannot be loaded (") and one_sentence(caught.value)


def test_an_empty_folder_and_a_damaged_file_are_one_sentence(home):
    with pytest.raises(UserError, match=r"^data\.name: .*my set cannot be loaded \(.+\)$") as caught:
        hub(str(home))
    assert one_sentence(caught.value)
    for file, data, reason in (
        ("train.parquet", "PAR1 and no more", "Parquet magic bytes not found"),
        ("train.csv", "text,label\none,a\ntwo,b,c\n", "Expected 2 fields in line 3, saw 3"),
    ):
        (home / file).write_text(data)
        with pytest.raises(UserError, match=rf"^data\.name: .*my set cannot be loaded \(.*{reason}.*\)$") as caught:
            hub(str(home))
        assert one_sentence(caught.value)
        (home / file).unlink()


def test_a_data_set_without_a_training_split_says_which_it_has(home):
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), home / "test.parquet")
    with pytest.raises(UserError) as caught:
        hub(str(home))
    assert str(caught.value) == f"data.name: {home} has no training split, only test"


def test_a_column_that_is_not_there_is_named_with_its_neighbour(home):
    save(home / "train.parquet", text=TEXTS, label=["a"] * 11)
    with pytest.raises(UserError) as caught:
        hub(str(home), target="lable")
    assert str(caught.value) == "data.target: no column 'lable' in train; did you mean 'label'? columns: text, label"
