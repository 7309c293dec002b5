"""Trainings whose inputs start from published encoders (`pretrained=`)."""

import hashlib
import json
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest
import torch
import yaml
from helpers.checkpoints import save_peer, words_of_bert
from helpers.hub import stand_in
from helpers.serving import client_of
from PIL import Image
from safetensors.torch import load_file

import dxn
from dxn.cli import main
from dxn.runs.encoders import choose_encoder, table

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
QUICK = ["target=label", "trainer.precision=float32", "trainer.device=cpu", "baseline=none"]
STILL = ["optimizer.lr=1e-30", "optimizer.weight_decay=0"]  # a training that changes nothing
MIXED = ["data.text=title", "data.image=photo", "data.number=price"]
ROWS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small checkpoints of texts and pictures, and a table with both and a number."""
    path = tmp_path_factory.mktemp("published")
    torch.manual_seed(1)
    for name, peer in (("bert", "BERT"), ("modern", "ModernBERT"), ("vit", "ViT (transformers)")):
        (path / name).mkdir()
        save_peer(peer, path / name)
        if name != "vit":
            words_of_bert().save(str(path / name / "tokenizer.json"))
    (path / "bert" / "README.md").write_text("---\nlanguage: en\nlicense: bsd-3-clause\n---\n")
    (path / "vit" / "preprocessor_config.json").write_text(
        json.dumps({"do_normalize": True, "size": {"height": 40, "width": 40}})
    )
    random, lines = np.random.default_rng(0), ["title,body,photo,price,label,split"]
    for i in range(ROWS):
        pixels = random.integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path / f"{i}.png")
        title = f"w{i + 5} w{i % 3 + 50}" if i % 5 else ""
        photo = f"{i}.png" if i % 7 else ""
        split = ("train", "train", "validation", "test")[i // 6]
        lines.append(f"{title},w8 w{i % 4 + 7},{photo},{i / 7:.2f},{'abc'[i % 3]},{split}")
    (path / "table.csv").write_text("\n".join(lines))
    return path


def words(folder, run, *options):
    return ["train", str(folder / "table.csv"), *QUICK, *options, f"run={run}"]


def train(folder, run, *options):
    assert main(words(folder, run, *options)) == 0
    return load_file(run / "model" / "model.safetensors")


def assert_encoder(state, key, source):
    """The weights of the encoder of an adapter are those of a checkpoint."""
    prefix = f"adapters.{key}.backbone."
    names = [name for name in state if name.startswith(prefix)]
    assert names
    original = dxn.from_public(str(source)).model.state_dict()
    for name in names:
        expected = original[f"backbone.{name.removeprefix(prefix)}"]
        assert torch.allclose(state[name], expected.float(), rtol=0, atol=1e-12), name


def test_each_input_starts_from_its_encoder_and_is_used_like_any_other(folder, tmp_path, capsys):
    run = tmp_path / "run"
    encoders = [f"pretrained.text={folder / 'bert'}", f"pretrained.photo={folder / 'vit'}"]
    state = train(folder, run, *encoders, "trainer.epochs=2", *MIXED, *STILL)
    printed = capsys.readouterr().out
    assert f"pretrained: photo={folder / 'vit'} (ViT of transformers)" in " ".join(printed.split())
    assert_encoder(state, "text", folder / "bert")
    assert_encoder(state, "photo", folder / "vit")
    card = (run / "model" / "README.md").read_text()
    weights = folder / "bert" / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    about = f"text={folder / 'bert'} (license: bsd-3-clause; SHA-256: {weights.name} {digest})"
    assert f"- initial weights: {about}" in card
    assert f"photo={folder / 'vit'} (license: see its source; SHA-256: " in card
    model = dxn.load(run)
    rows = [{"title": "w5 w6", "photo": str(folder / "1.png"), "price": 1.0}, {"title": "w5"}]
    answers = model.predict(rows)
    assert len(answers) == 2
    # Alone, as beside a longer one.
    (alone,) = model.predict(rows[1:])
    assert alone["probabilities"] == pytest.approx(answers[1]["probabilities"], abs=1e-5)
    attend = ["attend", f"run={run}", "input.title=w5 w6", f"input.photo={folder / '1.png'}"]
    assert main([*attend, "encoder=photo", f"output={tmp_path / 'attention'}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "photo: " in printed
    assert "title: " not in printed
    assert "inside the encoder of photo, not that of the answer" in printed
    page = (tmp_path / "attention" / "attention.html").read_text()
    assert '"reader": "the encoder of photo"' in page
    assert main([*attend, "encoder=price"]) == 2
    assert "an encoder of its own, got 'price'; this model has th" in capsys.readouterr().err
    with client_of(model) as client:
        assert client.get("/model").json()["encoders"] == ["title", "photo"]
        request = {"inputs": {"title": "w5 w6", "price": 1}}
        (shared,) = client.post("/attend", json=request).json()["results"]
        assert {each["input"] for each in shared["tokens"]} >= {"title", "price"}
        (inside,) = client.post("/attend", json={**request, "encoder": "title"}).json()["results"]
        assert {each["input"] for each in inside["tokens"]} == {"title"}
        refused = client.post("/attend", json={**request, "encoder": "photo"})
        assert "encoder: the sample has no photo" in refused.json()["error"]["message"]
    assert main(["train", f"resume={run}", "trainer.epochs=3"]) == 0
    assert main(["export", f"run={run}", f"output={tmp_path / 'export'}"]) == 0
    assert (tmp_path / "export" / "model.onnx").exists()


def test_an_input_can_have_an_encoder_of_its_own_and_another_width(folder, tmp_path):
    own = [f"pretrained.text={folder / 'bert'}", f"pretrained.body={folder / 'modern'}", "dim=16"]
    state = train(folder, tmp_path / "run", *own, "trainer.epochs=1", *STILL)
    assert_encoder(state, "text", folder / "bert")
    assert_encoder(state, "body", folder / "modern")
    assert state["adapters.body.up.weight"].shape == (16, 12)


def test_one_input_starts_as_with_weights(folder, tmp_path):
    one = ["data.text=[body]", "adapters=[text]", "trainer.epochs=1"]
    encoder = train(folder, tmp_path / "a", *one, f"pretrained.text={folder / 'bert'}")
    weights = train(folder, tmp_path / "b", *one, f"weights={folder / 'bert'}")
    assert all(torch.equal(encoder[name], weights[name]) for name in weights)
    saved = yaml.safe_load((tmp_path / "a" / ".hydra" / "config.yaml").read_text())
    assert saved["weights"]["source"] == str(folder / "bert")
    assert saved["pretrained"] == "none"


@pytest.mark.parametrize(
    ("pretrained", "kind"), [("none", "texts"), ("{folder}/bert", "other")], ids=["none", "bert"]
)
def test_a_published_reader_of_texts_is_trusted_like_other_models(
    folder, tmp_path, monkeypatch, pretrained, kind
):
    kinds = []
    monkeypatch.setattr(
        "dxn.stacking.train.fit_mix", lambda *_, inputs, **__: kinds.append(inputs) or (0.5, 0.5)
    )
    options = [f"pretrained={{text: {pretrained.format(folder=folder)}}}", "baseline=auto"]
    train(folder, tmp_path / "run", *ONE_TEXT, *options, "trainer.epochs=1", "report=false")
    assert kinds == [kind]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["pretrained.photos=vit"], "pretrained.photos: no input has this name or modality; the"),
        (["pretrained.price=bert"], "pretrained.price: there is no encoder for a number, got"),
        (
            ["pretrained.text=bert", "pretrained.title=none", "pretrained.body=none"],
            "pretrained.text: no input uses {folder}/bert, because pretrained.title and pretrained",
        ),
        (["pretrained.photo=bert"], "pretrained.photo: {folder}/bert reads text, and the input is"),
        (["pretrained.photo=vit", "weights=bert"], "pretrained.photo: has no effect with weights"),
        (["pretrained.photo=vit", "pretrain=masked"], "photo: has no effect with pretrain, got"),
        (["pretrained.photo=vit", "pretrained=none"], "pretrained: has no effect with pretrained."),
        (
            ["pretrained=vit"],
            "pretrained: must be one of none, auto, small, base, or a mapping, got",
        ),
        (
            ["pretrained=small", "data.number=price", "adapters=[number]"],
            "pretrained: there are enc",
        ),
        (["pretrained.photo=nobody/nothing"], "pretrained.photo: nobody/nothing: the hub cannot"),
        (["pretrained.photo=no/such/file"], "pretrained.photo: file or folder not found: no/such"),
    ],
    ids=lambda v: v[0] if isinstance(v, list) else "",
)
def test_wrong_encoders_are_refused_in_one_line(folder, tmp_path, capsys, options, message):
    paths = [o.replace("=vit", f"={folder / 'vit'}") for o in options]
    paths = [o.replace("=bert", f"={folder / 'bert'}") for o in paths]
    assert main(words(folder, tmp_path / "run", *paths)) == 2
    error = capsys.readouterr().err
    assert message.format(folder=folder) in " ".join(error.split())


@pytest.fixture
def hub(folder, tmp_path, monkeypatch):
    """A stand-in for the hub with the small encoders of texts and pictures, and an empty cache."""
    with stand_in() as hub:
        for modality, name in (("text", "bert"), ("image", "vit")):
            encoder = table()[modality]["small"][0]
            files = {path.name: path.read_bytes() for path in (folder / name).iterdir()}
            hub.repos[encoder.source] = {encoder.revision: files}
            hub.refs[encoder.source] = {"main": encoder.revision}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_HUB_OFFLINE")
        # Read when the library was imported.
        for name, value in {
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
        }.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        yield hub


def test_a_training_starts_from_the_encoders_of_the_table_and_works_offline(
    hub, folder, tmp_path, monkeypatch, capsys
):
    options = [*MIXED, "trainer.epochs=1", *STILL]

    def printed(name):
        state = train(folder, tmp_path / name, *options)
        return state, " ".join(capsys.readouterr().out.split())

    state, output = printed("first")
    assert_encoder(state, "text", folder / "bert")
    name = table()["text"]["small"][0].name
    line = (
        f"pretrained: text={name} (BERT, 91 MB, Apache-2.0, English, downloaded); pretrained=none"
    )
    assert line in output
    card = (tmp_path / "first" / "model" / "README.md").read_text()
    assert f"- initial weights: text={name} (license: Apache-2.0; SHA-256: model.saf" in card
    assert "- initial weights: image=facebook/dinov2-small@" in card
    # After an interrupted download.
    (tokenizer,) = (tmp_path / "cache").glob("models--sentence*/snapshots/*/tokenizer.json")
    tokenizer.unlink()
    _, output = printed("again")
    assert "English, downloaded)" in output
    assert tokenizer.exists()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.requests.clear()
    _, output = printed("second")
    assert "English, from the local cache); pretrained=none turns it off" in output
    assert not hub.requests
    # Without the cache, from random weights, unless the user asks for encoders.
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    state, output = printed("third")
    assert (
        "pretrained: text, image: random weights, because the local cache has no copy of "
        "sentence-transformers/all-MiniLM-L6-v2 and facebook/dinov2-small, and the hub cannot be "
        "used (HF_HUB_OFFLINE is set); pretrained=none hides this line"
    ) in output
    assert output.count("pretrained:") == 1
    assert "adapters.text.up.weight" not in state
    # A column with the name of a modality is a column.
    (tmp_path / "named.csv").write_text(
        "text,title,label\n"
        + "\n".join(f"{'yn'[i % 2]},w{i} w9 w8,{'ab'[i % 2]}" for i in range(40))
    )
    named = ["data.category=text", "data.text=title", "trainer.epochs=1", f"run={tmp_path}/named"]
    assert main(["train", str(tmp_path / "named.csv"), *QUICK, *named]) == 0
    assert main(words(folder, tmp_path / "run", "pretrained=small", *MIXED)) == 2
    assert "the local cache has no copy of sentence-tr" in capsys.readouterr().err


def test_the_printed_limit_is_that_of_the_training(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("dxn.presets.preset.seconds_per_row", lambda situation: 1e9)
    text, photo = f"pretrained.text={folder / 'bert'}", f"pretrained.photo={folder / 'vit'}"
    for options, minutes in (([text, photo, *MIXED], 15), ([text, *ONE_TEXT], 10)):
        run = tmp_path / str(minutes)
        train(folder, run, *options, "trainer.epochs=1", "report=false")
        output = " ".join(capsys.readouterr().out.split())
        assert f"epochs of all weights fit into {minutes} minutes" in output
        saved = yaml.safe_load((run / ".hydra" / "config.yaml").read_text())
        assert saved["trainer"]["max_minutes"] == minutes


ONE_TEXT = ["data.text=[body]", "adapters=[text]"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["backbone.depth=3", *ONE_TEXT], "because backbone.depth is set"),
        (["dim=64", *ONE_TEXT], "because dim is set"),
        (["adapters.text.max_len=9999", *ONE_TEXT], "because adapters.text.max_len is set"),
        (["head=masked"], None),
        (["preset=plain"], None),
        (["debug=fast"], None),
        (["pretrain=masked", "pretrain.epochs=1"], None),
        (["data.number=price", "adapters=[number]"], None),
    ],
    ids=lambda v: v[0] if isinstance(v, list) else "",
)
def test_a_training_starts_from_random_weights(hub, folder, tmp_path, capsys, options, message):
    train(folder, tmp_path / "run", *options, "trainer.epochs=1")
    output = " ".join(capsys.readouterr().out.split())
    assert (message or "") in output
    assert output.count("pretrained:") == bool(message)
    assert not hub.requests
    saved = yaml.safe_load((tmp_path / "run" / ".hydra" / "config.yaml").read_text())
    assert saved["pretrained"] == "none"


def test_a_training_without_an_encoder_imports_neither_the_hub_library_nor_checkpoints(
    folder, tmp_path
):
    code = "import sys; from dxn.cli import main; main(sys.argv[1:]); "
    code += "print('imported:', *{'huggingface_hub', 'dxn.weights'} & {*sys.modules})"
    training = words(folder, tmp_path / "run", *ONE_TEXT, "trainer.epochs=1", "report=false")
    command = [sys.executable, "-c", code, *training]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "(HF_HUB_OFFLINE is set)" in done.stdout
    assert done.stdout.splitlines()[-1] == "imported:"


def test_the_members_of_an_ensemble_start_alike(hub, folder, tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    train(folder, run, *ONE_TEXT, "ensemble=2", "trainer.epochs=1")
    assert capsys.readouterr().out.count("pretrained: text: random weights") == 1
    monkeypatch.delenv("HF_HUB_OFFLINE")
    train(folder, tmp_path / "found", *ONE_TEXT, "ensemble=2", "trainer.epochs=1")
    assert capsys.readouterr().out.count("pretrained: text=sentence-transformers/") == 2


def test_a_hub_that_does_not_answer_is_given_up(hub, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("dxn.runs.encoders.SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts no connection
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        train(folder, tmp_path / "run", *MIXED, "trainer.epochs=1", *STILL)
    output = " ".join(capsys.readouterr().out.split())
    assert output.count("random weights, because") == 1
    assert "did not answer within 0.1 seconds" in output or "timed out" in output


def test_the_reason_of_a_server_that_is_no_hub_is_short(hub, folder, tmp_path, capsys, monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        train(folder, tmp_path / "run", *ONE_TEXT, "trainer.epochs=1")
        server.shutdown()
    output = " ".join(capsys.readouterr().out.split())
    assert "the hub cannot be used (status 501: " in output
    assert "For more information" not in output


@pytest.mark.parametrize(
    ("texts", "is_english"),
    [
        (["The soup is cold", "and it was late"], True),
        (["Red running shoes", "Blue shirt"], True),
        (["Die Suppe ist kalt", "und das Brot ist alt"], False),
        (["Суп холодный"], False),
        (["スープが冷たい", "The soup"], False),
        (["La soupe est froide et le pain"], False),
        ([], True),
    ],
)
def test_texts_that_are_not_english_get_a_multilingual_encoder(texts, is_english):
    for size in ("small", "base"):
        assert ("multilingual" not in choose_encoder("text", size, texts).source) == is_english
