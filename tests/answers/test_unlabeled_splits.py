"""A validation or test split without labels is named, and left out of the metrics."""

import pandas as pd
import pytest
import torch
from helpers.data import write_table
from helpers.runs import PLAIN, SMALL, metrics_of
from PIL import Image

import dxn
from dxn.cli import main

OPTIONS = [*SMALL, *PLAIN, "adapters=[text]", "trainer.epochs=1", "report=false"]


def rows_of(count, label=lambda i: "ab"[i % 2]):
    """Texts whose second word tells their class; None: a row without a label column."""
    rows = []
    for i in range(count):
        row = {"text": f"the {['fine', 'dull'][i % 2]} film {i}"}
        rows.append(row if label is None else {**row, "label": label(i)})
    return rows


def words_of(folder, **splits):
    """Write a table for each split, and return the words that name them on the command line."""
    words = ["target=label"]
    for name, rows in splits.items():
        words.append(f"data.{name}={write_table(folder / f'{name}.csv', rows)}")
    return words


def train(folder, capsys, **splits):
    """The names of the metrics, and the output of a training on these splits."""
    words = words_of(folder, train=rows_of(44), **splits)
    assert main(["train", *words, *OPTIONS, f"run={folder / 'run'}"]) == 0
    return set(metrics_of(folder / "run")), capsys.readouterr().out


@pytest.mark.parametrize("label", [lambda i: "", lambda i: -1, lambda i: "?", None])
def test_a_test_split_without_labels_has_no_metrics(label, tmp_path, capsys):
    metrics, out = train(tmp_path, capsys, test=rows_of(12, label))
    assert "test: left out of the metrics, because none of its 12 rows has a value of label" in out
    assert "validation/accuracy" in metrics and "test/accuracy" not in metrics


def test_a_validation_split_without_labels_is_replaced_by_training_rows(tmp_path, capsys):
    hidden = rows_of(12, lambda i: -1)
    metrics, out = train(tmp_path, capsys, validation=hidden, test=rows_of(12))
    assert "validation: left out of the metrics, because none of its 12 rows" in out
    assert "validation: 10% of the training rows" in out
    assert "test/accuracy" in metrics
    run = tmp_path / "run"
    assert main(["evaluate", f"run={run}"]) == 0
    assert main(["evaluate", f"run={run}", "split=validation"]) == 0
    capsys.readouterr()
    words = words_of(tmp_path, train=rows_of(44), validation=rows_of(12), test=hidden)
    assert main(["evaluate", f"run={run}", "data=table", *words[1:], "split=test"]) == 2
    captured = capsys.readouterr()
    assert "split: the data has train, validation, got test" in captured.err
    assert "test: left out of the metrics" in captured.out


def test_check_names_a_test_split_without_labels(tmp_path, capsys):
    words = words_of(tmp_path, train=rows_of(44), test=rows_of(12, None))
    assert main(["check", *words, f"output={tmp_path / 'bad.jsonl'}"]) == 0
    assert "test: left out of the metrics, because none of its 12 rows" in capsys.readouterr().out


def test_minus_one_can_be_a_class_or_a_number(tmp_path, capsys):
    folder = tmp_path / "classes"
    folder.mkdir()
    words = words_of(
        folder, train=rows_of(44, lambda i: [-1, 1][i % 2]), test=rows_of(4, lambda i: -1)
    )
    assert main(["check", *words, f"output={folder / 'bad.jsonl'}"]) == 0
    assert "test: 4 rows" in capsys.readouterr().out
    words = words_of(folder, train=rows_of(44, lambda i: i - 20.5), test=rows_of(4, lambda i: -1))
    assert main(["check", *words, f"output={folder / 'bad.jsonl'}"]) == 0
    assert "test: 4 rows" in capsys.readouterr().out


def test_training_without_a_target_uses_all_rows(tmp_path, capsys):
    metrics, out = train_masked(tmp_path, capsys)
    assert "left out of the metrics" not in out
    assert "test/loss" in metrics


def train_masked(folder, capsys):
    words = words_of(folder, train=rows_of(44), test=rows_of(12, lambda i: ""))
    run = folder / "run"
    assert main(["train", *words[1:], "head=masked", *OPTIONS, f"run={run}"]) == 0
    return set(metrics_of(run)), capsys.readouterr().out


@pytest.mark.parametrize("form", [None, "torch", "numpy", "pandas", "arrow"])
def test_data_sets_in_each_format_have_hidden_test_labels(form, tmp_path, capsys):
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["a", "b"])
    features = datasets.Features({"text": datasets.Value("string"), "label": label})
    data = {}
    for name, rows in {"train": rows_of(44), "test": rows_of(12, lambda i: -1)}.items():
        columns = {key: [row[key] for row in rows] for key in ("text", "label")}
        data[name] = datasets.Dataset.from_dict(columns, features=features).with_format(form)
    words = dict(word.split("=") for word in OPTIONS if word != "adapters=[text]")
    run = dxn.train(data, target="label", adapters=["text"], run=tmp_path / "run", **words)
    assert run.model.predict("the fine film")["prediction"] in ("a", "b")
    assert "test: left out of the metrics" in capsys.readouterr().out


def test_a_data_frame_without_labels_is_left_out(tmp_path, capsys):
    frames = {
        "train": pd.DataFrame(rows_of(44)),
        "validation": pd.DataFrame(rows_of(12, lambda i: None)),
        "test": pd.DataFrame(rows_of(12, None)),
    }
    words = dict(word.split("=") for word in OPTIONS if word != "adapters=[text]")
    dxn.train(frames, target="label", adapters=["text"], run=tmp_path / "run", **words)
    out = capsys.readouterr().out
    assert "validation: left out of the metrics" in out and "test: left out of the metrics" in out


def test_pictures_of_a_test_split_without_classes_are_left_out(tmp_path, capsys):
    rand = torch.Generator().manual_seed(0)
    for i in range(40):
        folder = tmp_path / "photos" / (f"train/{'ab'[i % 2]}" if i < 30 else "test")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(0, 256, (8, 8, 3), generator=rand, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
    words = ["check", str(tmp_path / "photos"), f"output={tmp_path / 'bad.jsonl'}"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "test: left out of the metrics, because none of its 10 rows has a value of" in out
    assert "train: 27 rows" in out and "test: 10 rows" not in out
    (tmp_path / "photos/train/30.png").write_bytes((folder / "30.png").read_bytes())
    assert main(words) == 2
    assert "30.png is not in a class folder" in capsys.readouterr().err
