"""Output vectors of frozen encoders, which are computed once."""

import csv
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import torch
from helpers.checkpoints import save_peer, words_of_bert
from helpers.whisper import RATE, noises, save_whisper
from PIL import Image
from safetensors.torch import load_file

import dxn
from dxn.cli import main
from dxn.core.tokens import Span, Tokens
from dxn.data.encoded import VectorStore
from dxn.stacking.stacked import stacks_of
from dxn.tokenize import (
    AudioAdapter,
    ImageAdapter,
    ImageAugment,
    SeriesAdapter,
    TextAdapter,
    VideoAdapter,
    VideoAugment,
    VideoSampling,
)
from dxn.tokenize.encoded_adapter import EncodedAdapter, pooled

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
ROWS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small checkpoints of texts and pictures, and a table with both."""
    path = tmp_path_factory.mktemp("frozen")
    torch.manual_seed(1)
    for name, peer in (("bert", "BERT"), ("vit", "ViT (transformers)")):
        (path / name).mkdir()
        save_peer(peer, path / name)
    words_of_bert().save(str(path / "bert" / "tokenizer.json"))
    (path / "vit" / "preprocessor_config.json").write_text(
        json.dumps({"do_normalize": True, "size": {"height": 40, "width": 40}})
    )
    random, lines = np.random.default_rng(0), ["title,photo,label,split"]
    for i in range(ROWS):
        pixels = random.integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path / f"{i}.png")
        # A missing title, a missing photo, and one that two rows share.
        title, photo = f"w{i + 5} w{i % 3 + 50}" * (i != 3), f"{min(i, 14)}.png" * (i != 5)
        lines.append(f"{title},{photo},{'ab'[i % 2]},{('train', 'test')[i % 4 == 3]}")
    (path / "table.csv").write_text("\n".join(lines))
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dxn" / "encoded"


def train(folder, run, *options, table="table.csv"):
    encoders = [f"pretrained.text={folder / 'bert'}", f"pretrained.photo={folder / 'vit'}"]
    fixed = ["finetune.freeze=all", "target=label", "baseline=none"]
    columns = ["data.text=title", "data.image=photo", "trainer.device=cpu", "report=false"]
    words = [
        str(folder / table),
        *encoders,
        *fixed,
        *columns,
        "trainer.epochs=2",
        "trainer.precision=float32",
        *options,
    ]
    assert main(["train", *words, f"run={run}"]) == 0
    return load_file(run / "model" / "model.safetensors")


def test_values_are_encoded_once_and_the_training_is_the_same(folder, tmp_path, cache, capsys):
    plain = train(folder, tmp_path / "plain", "loader.encoded_gb=0")
    assert "values once" not in capsys.readouterr().out and not cache.exists()
    first = train(folder, tmp_path / "first")
    printed = " ".join(capsys.readouterr().out.split())
    # As if the time limit had frozen them: the new backbone is that of random weights.
    assert first["backbone.norm.weight"].shape == (128,)
    assert f"title: encoding {ROWS - 1} values once" in printed
    assert f"photo: encoding {ROWS - 2} values once" in printed
    again = train(folder, tmp_path / "again")
    assert "values once" not in capsys.readouterr().out
    for name, tensor in plain.items():
        assert torch.allclose(first[name], tensor, rtol=0, atol=1e-5), name
        assert torch.equal(again[name], first[name]), name
    figures = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in
               ("plain", "first")]  # fmt: skip
    assert figures[0]["test/loss"] == pytest.approx(figures[1]["test/loss"], abs=1e-5)


def test_vectors_of_texts_and_pictures_that_are_compared_are_encoded_once(
    folder, tmp_path, cache, capsys
):
    options = ["head=contrastive", "target=null", "trainer.epochs=1"]
    plain = train(folder, tmp_path / "plain", *options, "loader.encoded_gb=0")
    first = train(folder, tmp_path / "first", *options)
    assert "values once" in " ".join(capsys.readouterr().out.split())
    for name, tensor in plain.items():
        assert torch.allclose(first[name], tensor, rtol=0, atol=1e-5), name


def test_tags_of_words_are_predicted_from_vectors_that_are_kept(folder, tmp_path, capsys):
    lines = [
        {
            "title": [f"w{i + 5}", f"w{i % 3 + 50}", "w9"][: 2 + i % 2],
            "photo": f"{i}.png",
            "label": ["O", "B-thing", "O"][: 2 + i % 2],
            "split": ("train", "test")[i % 4 == 3],
        }
        for i in range(ROWS)
    ]
    (folder / "tags.jsonl").write_text("\n".join(map(json.dumps, lines)))
    plain = train(folder, tmp_path / "plain", "loader.encoded_gb=0", table="tags.jsonl")
    assert "values once" not in capsys.readouterr().out
    first = train(folder, tmp_path / "first", table="tags.jsonl")
    printed = " ".join(capsys.readouterr().out.split())
    assert f"title: encoding {ROWS} values once" in printed
    assert f"photo: encoding {ROWS} values once" in printed
    for name, tensor in plain.items():
        assert torch.allclose(first[name], tensor, rtol=0, atol=1e-5), name
    figures = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in
               ("plain", "first")]  # fmt: skip
    assert figures[0]["test/loss"] == pytest.approx(figures[1]["test/loss"], abs=1e-5)
    tables = [(tmp_path / name / "predictions.csv").read_text() for name in ("plain", "first")]
    assert tables[0] == tables[1]


def test_only_new_values_are_encoded(folder, tmp_path, cache, capsys):
    train(folder, tmp_path / "first")
    capsys.readouterr()
    longer = (folder / "table.csv").read_text() + "\nw60 w61 w62,0.png,a,train\n"
    (folder / "longer.csv").write_text(longer)
    train(folder, tmp_path / "second", table="longer.csv")
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        f"title: encoding 1 of {ROWS} values once" in printed and "photo: encoding" not in printed
    )


def test_damaged_and_interrupted_files_are_repaired(folder, tmp_path, cache, capsys):
    before = train(folder, tmp_path / "first")
    for path in cache.glob("*/vectors"):
        os.truncate(path, path.stat().st_size // 2)
    for path in cache.glob("*/places"):
        path.write_bytes(path.read_bytes() + b"half a place")
    capsys.readouterr()
    after = train(folder, tmp_path / "second")
    assert " of " in capsys.readouterr().out.partition("values once")[0]
    for path in cache.glob("*/vectors"):
        path.unlink()
    train(folder, tmp_path / "third")
    printed = " ".join(capsys.readouterr().out.split())
    assert "values once" in printed and "the encoder runs in each epoch" not in printed
    for name, tensor in before.items():
        assert torch.allclose(after[name], tensor, rtol=0, atol=1e-5), name


def test_without_room_they_are_computed_in_each_epoch(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("dxn.runs.encoding.ENOUGH", 4)
    train(folder, tmp_path / "run", "loader.encoded_gb=1e-6")
    assert "(loader.encoded_gb=1e-06" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    train(folder, tmp_path / "unwritable")
    assert "so the encoder runs in each epoch" in " ".join(capsys.readouterr().out.split())


def test_augmented_inputs_and_trained_encoders_are_not_kept(folder, tmp_path, cache, capsys):
    train(folder, tmp_path / "run", "adapters.image.augment.flip=true",
          "finetune.lora_rank=2", "finetune.lora_targets=[adapters.text.*]")  # fmt: skip
    assert "values once" not in capsys.readouterr().out and not cache.exists()


def test_vectors_of_bf16_are_evaluated_in_another_precision(folder, tmp_path, capsys):
    train(folder, tmp_path / "run", "trainer.precision=bf16")
    assert "values once" in capsys.readouterr().out


def test_a_resumed_training_reads_them(folder, tmp_path, cache, capsys):
    train(folder, tmp_path / "part", "trainer.epochs=1")
    encoders = {path.name for path in cache.iterdir() if path.is_dir()}
    for path in cache.glob("*/*"):
        path.unlink()
    capsys.readouterr()
    assert main(["train", f"resume={tmp_path / 'part'}", "trainer.epochs=3"]) == 0
    assert "values once" in capsys.readouterr().out
    # The names are digests of the weights, which are those of the checkpoint again.
    assert {path.parent.name for path in cache.glob("*/vectors")} == encoders


@pytest.mark.parametrize("options", [(), ("ensemble=2",)], ids=["one", "ensemble"])
def test_a_baseline_reads_values_and_vectors(folder, tmp_path, monkeypatch, capsys, options):
    train(folder, tmp_path / "first")
    capsys.readouterr()
    calls, encode = [], EncodedAdapter.encode
    monkeypatch.setattr(
        EncodedAdapter, "encode", lambda self, batch: calls.append(self) or encode(self, batch)
    )
    monkeypatch.setattr("dxn.stacking.train.fit_mix", lambda *_, **__: (0.5, 0.5))
    train(folder, tmp_path / "run", "baseline=always", *options)
    printed = capsys.readouterr().out
    assert "baseline: TF-IDF + small pictures + vectors of frozen encoders + " in printed
    assert options or not calls  # the cache has the vectors
    with (tmp_path / "run" / "predictions.csv").open() as file:
        expected = [float(row["p(a)"]) for row in csv.DictReader(file)]
    with (folder / "table.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "test"]
    # One of them has no title.
    samples = [{"title": r["title"] or None, "photo": str(folder / r["photo"])} for r in rows]
    model = dxn.load(tmp_path / "run")
    calls.clear()
    answers = [answer["probabilities"]["a"] for answer in model.predict(samples)]
    assert answers == pytest.approx(expected, abs=1e-5)
    assert len(calls) == 2 * model.num_members  # model and baseline share the vectors
    stacks = stacks_of(model.network)
    assert len(stacks) == model.num_members
    for stack in stacks:
        assert stack.baseline is not None
        assert stack.baseline.encoded == ["title", "photo"]
    without = {"title": "w5 w50"}
    _, beside = model.predict([samples[0], without])
    alone = model.predict(**without)["probabilities"]
    assert beside["probabilities"] == pytest.approx(alone, abs=1e-5)
    assert main(["evaluate", f"run={tmp_path / 'run'}"]) == 0
    # Without the vectors that were kept.
    pattern = r"│ (mixture|transformer|baseline|title|photo)"
    shown = [
        [line.split() for line in text.splitlines() if re.match(pattern, line)][-5:]
        for text in (printed, capsys.readouterr().out)
    ]
    assert len(shown[0]) == 5 and shown[0] == shown[1]
    # The test split has only one class, so that some metrics of the simple model are NaN.
    assert main(["train", f"resume={tmp_path / 'run'}", "trainer.epochs=3"]) == 0


def test_a_graph_has_a_baseline_that_reads_vectors(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("dxn.stacking.train.fit_mix", lambda *_, **__: (0.5, 0.5))
    save_whisper(tmp_path / "whisper")
    lines = ["sound,number,label,split"]
    for i, sound in enumerate(noises(*[0.2 + 0.01 * i for i in range(ROWS)])):
        soundfile.write(tmp_path / f"{i}.wav", sound, RATE)
        lines.append(f"{i}.wav,{i % 7},{'ab'[i % 2]},{('train', 'test')[i % 4 == 3]}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    run, words = tmp_path / "run", [str(tmp_path / "table.csv"), "target=label", "report=false"]
    options = ["finetune.freeze=all", "baseline=always", "trainer.epochs=1", "trainer.device=cpu"]
    words += [f"pretrained.audio={tmp_path / 'whisper'}", "trainer.precision=float32"]
    assert main(["train", *words, *options, f"run={run}"]) == 0
    (stack,) = stacks_of(dxn.load(run).network)
    assert stack.baseline is not None
    assert stack.baseline.encoded == ["sound"]
    capsys.readouterr()
    # The command compares the graph with the model.
    assert main(["export", f"run={run}", f"output={tmp_path / 'export'}"]) == 0
    assert "note: the graph has no baseline" not in capsys.readouterr().out


def test_other_processes_wait_for_the_vectors_of_an_encoder(cache):
    (cache / "old").mkdir(parents=True)
    (cache / "old" / "vectors").write_bytes(bytes(1000))
    code = "from dxn.core.files import lock, open_own; from pathlib import Path; import sys; "
    code += "print(lock(open_own(Path(sys.argv[1]))))"
    with VectorStore.opened("new", 2, torch.float32) as store:
        store.add([(b"a" * 16, torch.ones(3, 2))])
        assert store.make_room(0, 500) and not (cache / "old").exists()
        asked = subprocess.run([sys.executable, "-c", code, cache / "new.lock"], text=True,
                               capture_output=True, check=True)  # fmt: skip
        assert asked.stdout.strip() == "False"
        batch = store.column([b"a" * 16, None]).batch([0])
    assert batch["encoded"].tolist() == [[[1, 1]] * 3]


def test_tokenizers_know_whether_samples_are_random():
    adapters = (TextAdapter, ImageAdapter, AudioAdapter, SeriesAdapter, VideoAdapter)
    assert not any(adapter(8).tokenizer.is_random for adapter in adapters)
    assert ImageAdapter(8, augment=ImageAugment(flip=True)).tokenizer.is_random
    assert VideoAdapter(8, augment=VideoAugment(flip=True)).tokenizer.is_random
    assert VideoAdapter(8, sampling=VideoSampling(mode="random")).tokenizer.is_random


def test_many_columns_become_the_means_of_equal_parts():
    x, mask = torch.arange(12.0).view(1, 12, 1).repeat(2, 1, 1), torch.ones(2, 12).bool()
    mask[1, 5:] = False
    times = torch.stack([torch.arange(12.0), torch.arange(12.0) + 1], -1).repeat(2, 1, 1)
    tokens = pooled(Tokens(x, mask, (Span("a", "a", 0, 12, times),)), 6)
    assert tokens[0][0].tolist() == [0.5, 2.5, 4.5, 6.5, 8.5, 10.5]
    assert tokens[1][0].tolist() == [0, 1, 2, 3, 4]  # a short sample stays as it is
    assert tokens.spans[0].coords[0, 1].tolist() == [2, 4]
    boxes = torch.tensor([[[i, j, i + 1, j + 1] for i in range(4) for j in range(4)]]).float()
    picture = Tokens(torch.arange(16.0).view(1, 16, 1), torch.ones(1, 16).bool(),
                     (Span("a", "a", 0, 16, boxes),))  # fmt: skip
    rows = pooled(picture, 4)
    assert rows[0][0].tolist() == [1.5, 5.5, 9.5, 13.5]
    assert rows.spans[0].coords[0, 1].tolist() == [1, 0, 2, 4]
