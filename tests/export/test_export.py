"""Exported models: the graphs agree with the model, and programs use them without dxn."""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.exhaustive import exhaustive_except
from helpers.exports import example, imports, probabilities
from helpers.runs import PLAIN, SMALL, TINY_DIGITS, refused, table_of, train
from helpers.tasks import build_model
from PIL import Image
from torch import nn

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.core.files import write_sums
from dxn.export.examples import make_examples
from dxn.export.folder import _check_folder, write_export
from dxn.export.formats import compare, load, save
from dxn.export.graph import connected, find_ports, make_graph, reference_of, trace
from dxn.models import Backbone
from dxn.runs.saved import model_folder
from dxn.stacking.stacked import without_baseline
from dxn.tasks import Classify
from dxn.tokenize import AudioAdapter, ImageAdapter, TextAdapter
from dxn.tokenize.audio.spectrogram import SpectrogramOptions
from dxn.tokenize.text.options import TokenizerOptions

ONCE = ["trainer.epochs=1", "report=false"]
# torch.export and onnxruntime use interfaces of their own that are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def fruit(tmp_path_factory):
    """A run with the default baseline, so with TF-IDF features."""
    folder = tmp_path_factory.mktemp("fruit")
    data = folder / "fruit.csv"
    lines = table_of(60).splitlines()
    rows = [f"{line.replace(',', f',{i % 7},')}" for i, line in enumerate(lines[1:])]
    data.write_text("\n".join(["text,weight,label", *rows]))
    train(folder / "run", str(data), "preset=plain", *SMALL, *ONCE, "target=label", "fusion=late")
    return folder / "run"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A run with three modalities."""
    folder = tmp_path_factory.mktemp("mixed")
    train(folder / "run", "preset=plain", *TINY_DIGITS, *ONCE)
    return folder / "run"


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """A run that translates."""
    folder = tmp_path_factory.mktemp("writer")
    words = ["one", "two", "six", "ten"]
    rows = [f"{words[i % 4]} {words[i // 4 % 4]},{words[i % 4][::-1]}" for i in range(60)]
    (folder / "pairs.csv").write_text("\n".join(["text,back", *rows]))
    options = ["target=back", "head=generate", "head.max_len=12", "head.decoder.max_len=16"]
    decoder = ["head.decoder.backbone.depth=1", "head.decoder.backbone.num_heads=2"]
    data = str(folder / "pairs.csv")
    train(folder / "run", data, *PLAIN, *SMALL, *ONCE, *options, *decoder, "head.beams=1")
    return folder / "run"


@pytest.fixture(scope="module")
def export_of_fruit(fruit, tmp_path_factory):
    """A folder for ONNX, and what the command printed."""
    folder = tmp_path_factory.mktemp("exported") / "onnx"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["export", f"run={fruit}", f"output={folder}"]) == 0
    return folder, printed.getvalue()


@pytest.fixture
def exported(export_of_fruit):
    return export_of_fruit[0]


def transformer_of(run):
    """The model of a run without its baseline."""
    predictor = model_folder.load(run)
    without_baseline(predictor.network)
    return predictor


@pytest.mark.parametrize("sample", [{"text": "plum number 4", "weight": 3}, {"text": "a plum"}])
def test_a_model_with_a_baseline_of_texts_answers_like_its_transformer(fruit, exported, sample):
    assert model_folder.load(fruit).network.baseline is not None
    expected = transformer_of(fruit).predict(**sample)["probabilities"]
    answered = probabilities(exported, *(f"{name}={value}" for name, value in sample.items()))
    assert answered == pytest.approx(expected, abs=1e-4)


def test_an_export_says_that_it_leaves_out_a_baseline_of_texts(export_of_fruit):
    printed = " ".join(export_of_fruit[1].split())
    assert printed.startswith("exporting ")
    assert "note: the graph has no baseline (TF-IDF" in printed
    assert "answers like the transformer alone" in printed


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A run with two numbers and a baseline."""
    folder = tmp_path_factory.mktemp("numbers")
    rows = [f"{i % 11},{i % 7},{'ab'[(i % 11) * (i % 7) > 15]}" for i in range(240)]
    (folder / "t.csv").write_text("\n".join(["x,y,label", *rows]))
    data = str(folder / "t.csv")
    train(folder / "run", data, "preset=plain", *SMALL, *ONCE, "target=label")
    return folder / "run"


@pytest.mark.parametrize(
    ("baseline", "format"),
    exhaustive_except(itertools.product(["auto", "none"], ["onnx", "torch"]), ("auto", "torch")),
)
def test_a_baseline_of_numbers_is_part_of_the_graph_unless_it_is_left_out(
    numbers, baseline, format, tmp_path, capsys
):
    model = model_folder.load(numbers)
    assert model.network.baseline.trees is not None or model.network.baseline.dense is not None
    expected = model if baseline == "auto" else transformer_of(numbers)
    options = [f"baseline={baseline}", f"format={format}", f"output={tmp_path / 'out'}"]
    assert main(["export", f"run={numbers}", *options]) == 0
    expected = expected.predict(x=10.0, y=3.0)["probabilities"]
    assert probabilities(tmp_path / "out", "x=10", "y=3") == pytest.approx(expected, abs=1e-4)
    assert "note: the graph" not in capsys.readouterr().out


def test_the_example_runs_with_the_written_inputs(exported):
    with np.load(exported / "example.npz") as file:
        expected = dict(zip("ab", file["probabilities"][0], strict=True))
    assert probabilities(exported) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("colour=3", "the inputs are text, weight, got colour"),
        ("colour", "'colour': write each input as NAME=VALUE"),
        ("text=", "'text=': write each input as NAME=VALUE"),
        ("weight=heavy", "weight: cannot read 'heavy': must be a number"),
    ],
)
def test_the_example_names_a_wrong_input(exported, argument, message):
    result = example(exported, argument)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_the_description_has_the_inputs_the_outputs_and_the_labels(exported):
    about = json.loads((exported / "preprocess.json").read_text())
    assert about["task"] == "classify"
    assert about["outputs"] == {"labels": ["a", "b"]}
    (part,) = about["parts"]
    ports = {port["name"]: port for port in part["inputs"]}
    assert ports["text.ids"]["dtype"] == "int64"
    assert ports["text.ids"]["shape"][0] == "batch"
    assert ports["weight.value"]["shape"] == ["batch", 1, 1]
    # Coordinates only explain a model.
    assert not [name for name in ports if name.endswith(("coords", "words"))]
    assert [port["name"] for port in part["outputs"]] == ["probabilities", "embeddings"]


def test_a_graph_of_torch_has_all_modalities_and_any_sizes(mixed, tmp_path):
    folder = tmp_path / "torch"
    assert main(["export", f"run={mixed}", "format=torch", f"output={folder}"]) == 0
    predictor = model_folder.load(mixed)
    run = load(folder / "model.pt2", [])
    about = json.loads((folder / "preprocess.json").read_text())
    names = [port["name"] for port in about["parts"][0]["inputs"]]
    for batch, tensors in make_examples(predictor.model, 7, (1, 8)):
        with torch.no_grad():
            expected = predictor.network(batch).softmax(-1)
        outputs = run({name: tensors[name] for name in names})
        torch.testing.assert_close(outputs["probabilities"], expected, atol=1e-5, rtol=1e-5)
    # Missing inputs have the values of an example, because zeros are not valid for all graphs.
    with imports(folder), np.load(folder / "example.npz") as file:
        prepare = importlib.import_module("prepare_inputs").prepare_sample
        arrays = prepare({"text": "one"}, about, about["parts"][0]["inputs"])
        assert np.array_equal(arrays["image.pixels"], file["image.pixels"][:1])
        assert arrays["text.present"] == [True]
        assert arrays["image.present"] == [False]


@pytest.mark.exhaustive
def test_an_exported_writer_writes_the_same_text(writer, tmp_path):
    predictor = model_folder.load(writer)
    assert main(["export", f"run={writer}", "format=torch", f"output={tmp_path / 'out'}"]) == 0
    (expected,) = predictor.write(inputs={"text": "six ten one"})
    result = example(tmp_path / "out", "text=six ten one")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == expected


def test_an_exported_language_model_continues_in_the_same_way(tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog ran to the cat\n" * 40)
    options = ["head=language", "adapters=[text]", "backbone.causal=true"]
    text = [f"data.path={tmp_path / 'text.txt'}", "adapters.text.max_len=24"]
    token = ["adapters.text.tokenizer.kind=character"]
    run = tmp_path / "run"
    train(run, "data=text", *text, *token, *options, *PLAIN, *SMALL, *ONCE)
    predictor = model_folder.load(run)
    # As many tokens as max_len has room for.
    (expected,) = predictor.write(prompt="the cat", max_new=24 - len("the cat"))
    assert main(["export", f"run={run}", "format=torch", f"output={tmp_path / 'out'}"]) == 0
    result = example(tmp_path / "out", "the cat")
    assert result.returncode == 0, result.stderr
    assert result.stdout.removesuffix("\n") == expected
    # It stops at an end token.
    path = tmp_path / "out" / "preprocess.json"
    about = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = predictor.tokenizers["text"].vocabulary
    assert about["outputs"]["end"] == [vocabulary.token_to_id("[EOS]")]
    last = expected[-1]
    about["outputs"]["end"] = [vocabulary.token_to_id(last)]
    path.write_text(json.dumps(about), encoding="utf-8")
    cut = expected[: expected.index(last, len("the cat"))]
    assert example(tmp_path / "out", "the cat").stdout.removesuffix("\n") == cut


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["format=tflite"], "format: must be one of onnx, torch, public, got 'tflite'"),
        (["baseline=maybe"], "baseline: must be one of auto, always, none, got 'maybe'"),
        (["baseline=always"], "baseline: must be auto or none, got always"),
    ],
)
def test_a_wrong_option_is_named(fruit, options, message, tmp_path, capsys):
    command = ["export", f"run={fruit}", f"output={tmp_path / 'out'}", *options]
    assert refused(capsys, command) == [f"dxn: {message}"]
    assert not (tmp_path / "out").exists()


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    fruit, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("dxn.export.formats.find_spec", lambda name: None)
    (line,) = refused(capsys, ["export", f"run={fruit}", f"output={tmp_path / 'out'}"])
    assert "pip install 'dxn[export]'" in line


def test_other_files_are_never_replaced(fruit, tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("dear ann")
    (line,) = refused(capsys, ["export", f"run={fruit}", f"output={tmp_path}"])
    assert "has other files, which would be replaced" in line
    assert (tmp_path / "letter.txt").read_text() == "dear ann"


def test_a_file_that_was_added_to_an_export_is_never_deleted(tmp_path):
    (tmp_path / "preprocess.json").write_text("{}")
    write_sums(tmp_path)
    (tmp_path / "__pycache__").mkdir()  # from a run of the example
    _check_folder(tmp_path)
    (tmp_path / "app.py").touch()
    with pytest.raises(UserError, match=r"such as app\.py"):
        _check_folder(tmp_path)


def test_a_recurrent_backbone_is_refused_before_anything_is_written(tmp_path, capsys):
    data = tmp_path / "fruit.csv"
    data.write_text(table_of(40))
    options = [*PLAIN, *ONCE, "backbone=gru", "dim=16", "trainer.device=cpu"]
    train(tmp_path / "run", str(data), *options, "trainer.precision=float32")
    command = ["export", f"run={tmp_path / 'run'}", f"output={tmp_path / 'out'}"]
    (line,) = refused(capsys, command)
    assert "a model with a recurrent backbone or decoder cannot be exported" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("pad", [True, False])
def test_clips_of_at_most_one_window_are_answered_as_by_the_model(pad, tmp_path):
    clips = SpectrogramOptions(num_frames=100, windows=True, pad=pad)
    inputs = {"clip": AudioAdapter(8, spectrogram=clips).fit([torch.rand(8_000)])}
    backbone = Backbone(8, depth=1, num_heads=1)
    model = dxn.Model(inputs, backbone=backbone, head=Classify(), targets=["a", "b"])
    lines = write_export(model.predictor, tmp_path / "out", "torch")
    assert "note: clip: the graph reads clips of at most 1 seconds, and dxn divides" in lines[0]
    short, long = (np.random.default_rng(0).uniform(-1, 1, n) for n in (11_000, 17_000))
    with imports(tmp_path / "out"):
        about = json.loads((tmp_path / "out" / "preprocess.json").read_text())
        (part,) = about["parts"]
        prepare = importlib.import_module("prepare_inputs").prepare_sample
        answer = importlib.import_module("run_graph").load(tmp_path / "out" / part["file"])
        ours = answer(prepare({"clip": (short, 16_000)}, about, part["inputs"]))["probabilities"]
        with pytest.raises(SystemExit, match="longer than 1 s"):
            prepare({"clip": (long, 16_000)}, about, part["inputs"])
    theirs = model.predictor.predict(clip=(torch.from_numpy(short).float(), 16_000))
    assert ours[0] == pytest.approx(list(theirs["probabilities"].values()), abs=1e-4)


def test_a_file_that_differs_from_the_model_is_refused(tmp_path):
    class Double(nn.Module):
        def forward(self, inputs):
            return {"y": 2 * inputs["x"]}

    cases = [{"x": torch.rand(size, 3)} for size in (4, 2)]
    module = Double()
    right = [module(case) for case in cases]
    part = trace("model", module, cases, reference=right.__getitem__, network=module)
    path = save(part, "torch", tmp_path)
    assert compare(part, path) < 1e-6
    wrong = [{"y": 2.001 * case["x"]} for case in cases]
    with pytest.raises(UserError, match="differ from those of the model"):
        compare(replace(part, reference=wrong.__getitem__), path)
    unknown = [{"y": case["x"] * torch.nan} for case in cases]
    with pytest.raises(UserError, match="by inf"):
        compare(replace(part, reference=unknown.__getitem__), path)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("image_size", "patch_size"), [(24, 16), (16, 16)])
def test_a_graph_reads_pictures_of_one_patch_and_of_several(image_size, patch_size, tmp_path):
    task = Classify()
    task.target.fit(["a", "b"])
    adapter = ImageAdapter(16, image_size=image_size, patch_size=patch_size)
    model = build_model(task, {"image": adapter}).eval()
    examples = make_examples(model, 0)
    graph = make_graph(model, task, examples)
    cases = [{name: tensors[name] for name in graph.used} for _, tensors in examples]
    reference = reference_of(model, task, examples)
    part = trace("model", graph, cases, reference=reference, network=model)
    run = load(save(part, "torch", tmp_path), [])
    widths = set()
    for batch, tensors in make_examples(model, 1, (1,) * 30):
        with torch.no_grad():
            expected = model(batch).softmax(-1)
        outputs = run({name: tensors[name] for name in graph.used})
        torch.testing.assert_close(outputs["probabilities"], expected, atol=1e-5, rtol=1e-5)
        widths.add(tensors["image.pixels"].shape[3])
    assert min(widths) <= patch_size and max(widths) == image_size


def test_code_that_cannot_be_traced_is_named_without_a_traceback():
    class Branches(nn.Module):
        def forward(self, inputs):
            return {"y": inputs["x"] if bool(inputs["x"].sum() > 0) else -inputs["x"]}

    cases = [{"x": torch.rand(size, 3)} for size in (4, 2)]
    module = Branches()
    with pytest.raises(UserError, match=r"the model cannot be traced by torch\.export"):
        trace("model", module, cases, reference=lambda number: {}, network=module)


def test_an_input_is_kept_if_it_has_no_effect_for_the_values_of_the_examples():
    class Kernel(torch.nn.Module):
        used = ("near.x", "near.ids", "coords")

        def forward(self, inputs):
            # 0 for all values that are far from those of the training
            return {"scores": (-1e9 * (inputs["near.x"] - 3) ** 2).exp()}

    tensors = {
        "near.x": torch.rand(5, 2),
        "near.ids": torch.ones(5, 2, dtype=torch.long),
        "coords": torch.rand(5, 2),
    }
    assert connected(Kernel(), tensors) == {"near.x"}


def test_sizes_that_differ_become_names_and_others_stay_numbers():
    batches = [
        {
            "text.ids": torch.zeros(b, n),
            "text.mask": torch.zeros(b, n),
            "size.value": torch.ones(b, 1),
        }
        for b, n in ((5, 7), (3, 11), (2, 4))
    ]
    shapes = {port.name: port.shape for port in find_ports(batches)}
    assert shapes["text.ids"] == shapes["text.mask"] == ("batch", "text_1")
    assert shapes["size.value"] == ("batch", 1)


def test_lengths_differ_although_most_texts_and_clips_have_the_maximum():
    options = TokenizerOptions(prompt="a prompt before each of the texts ")
    texts = TextAdapter(8, tokenizer=options, max_len=14).fit(
        ["a prompt before each of the texts"] * 3
    )
    clips = AudioAdapter(8, spectrogram=SpectrogramOptions(num_frames=14, pad=False))
    inputs = {"text": texts, "clip": clips.fit([torch.rand(8_000)])}
    backbone = Backbone(8, depth=1, num_heads=1)
    model = dxn.Model(inputs, backbone=backbone, head=Classify(), targets=["a", "b"])
    for seed in range(20):
        examples = make_examples(model.predictor.model, seed)
        for name in ("text.ids", "clip.features"):
            assert len({tensors[name].shape[1] for _, tensors in examples}) > 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["within", "stretch", "crop", "cover", "pad"])
def test_objects_are_found_at_the_same_places_without_dxn(mode, tmp_path):
    options = ["data=objects", "data.num_train=20", "data.num_validation=4", "data.num_test=4"]
    options += [
        "head=detect",
        "adapters=[image]",
        "adapters.image.image_size=32",
        "adapters.image.patch_size=16",
    ]
    options += [f"adapters.image.resize.mode={mode}", "head.threshold=0.001", "head.max_objects=5"]
    train(tmp_path / "run", *options, *PLAIN, *SMALL, *ONCE)
    path = tmp_path / "picture.png"
    pixels = np.random.default_rng(0).integers(0, 255, (40, 90, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    folder = tmp_path / "exported"
    command = ["export", f"run={tmp_path / 'run'}", f"output={folder}", "format=torch"]
    assert main(command) == 0
    found = model_folder.load(tmp_path / "run").predict(image=str(path))["prediction"]
    result = example(folder, f"image={path}")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == len(found) == 5
    for line, each in zip(lines, found, strict=True):
        name, _, places = line.partition(": ")
        score, label = name.split()
        assert float(score) == pytest.approx(each["score"], abs=2e-4)
        assert label == each["label"]
        numbers = [float(place.split()[1]) for place in places.split(", ")]
        expected = [each[key] for key in ("left", "top", "right", "bottom")]
        assert numbers == pytest.approx(expected, abs=0.2)
