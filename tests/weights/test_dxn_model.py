"""Models that dxn trained, read from their model folder: what is read, and what is refused."""

import copy
import hashlib
import json
import re

import pytest
import torch
import yaml
from helpers.checkpoints import assert_refused
from safetensors.torch import load_file, save_file

from dxn.config.instantiate import build
from dxn.core.errors import UserError
from dxn.models import MultimodalModel
from dxn.weights import read_public

DIM = 14
NODES = {
    "inputs": {
        "front": {"modality": "image", "column": "front", "adapter": "image"},
        "back": {"modality": "image", "column": "back", "adapter": "image"},
    },
    "target": "label",
    "adapters": {
        "image": {
            "_target_": "dxn.tokenize.ImageAdapter",
            "dim": DIM,
            "image_size": 16,
            "patch_size": 8,
        }
    },
    "fusion": {"_target_": "dxn.models.LateFusion", "dim": DIM, "pool": "max"},
    "backbone": {
        "_target_": "dxn.models.Backbone",
        "dim": DIM,
        "depth": 3,
        "num_heads": 2,
        "norm": {"_target_": "dxn.models.NormOptions", "place": "post"},
    },
    "head": {"_target_": "dxn.tasks.Classify", "norm": True},
}
LABELS = {"task": "classify", "labels": ["x", "y", "z"], "class_weights": None}


def build_own(inputs=("front", "back")):
    """The model that NODES describe, with random weights."""
    adapters = {key: build(node, key=key) for key, node in NODES["adapters"].items()}
    inputs = dict.fromkeys(inputs, "image")
    fusion = build(NODES["fusion"], key="fusion", inputs=list(inputs))
    backbone = build(NODES["backbone"], key="backbone")
    task = build(NODES["head"], key="head")
    task.target.load(LABELS)
    head = task.make_head(DIM, fusion.width, dict.fromkeys(inputs, adapters["image"]))
    return MultimodalModel(adapters, inputs=inputs, fusion=fusion, backbone=backbone, head=head)


def write_sums(folder):
    paths = [path for path in sorted(folder.iterdir()) if path.name != "SHA256SUMS"]
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in paths]
    (folder / "SHA256SUMS").write_text("\n".join(sums) + "\n")


@pytest.fixture
def folder(tmp_path):
    """A run folder with a model folder in it."""
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    save_file(build_own().state_dict(), model / "model.safetensors")
    (model / "config.yaml").write_text(yaml.safe_dump(NODES, sort_keys=False))
    (model / "labels.json").write_text(json.dumps(LABELS))
    (model / "README.md").write_text("# A model\n")
    write_sums(model)
    return model


def test_the_run_the_model_folder_and_its_file_are_the_same_model(folder):
    for source in (folder.parent, folder, folder / "model.safetensors"):
        public = read_public(str(source))
        assert public.family.is_dxn
        architecture = public.architecture
        assert architecture.dim == DIM
        assert architecture.labels == ["x", "y", "z"]
        assert architecture.task == "classify"
        assert architecture.adapters["image"]["patch_size"] == 8
        assert architecture.backbone["depth"] == 3
        assert architecture.backbone["norm"]["place"] == "post"
        assert architecture.fusion == {"_target_": "dxn.models.LateFusion", "pool": "max"}
        assert architecture.head["norm"] is True


def test_all_tensors_are_filled(folder):
    public = read_public(str(folder))
    model = build_own()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    result = public.fill(model)
    assert not result.missing
    assert not result.unexpected
    assert not result.unfilled
    expected = load_file(folder / "model.safetensors")
    state = model.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_inputs_in_another_order_keep_their_tensors(folder):
    saved = load_file(folder / "model.safetensors")
    public = read_public(str(folder)).for_inputs(("back", "front"))
    tensors = public.checkpoint.tensors
    name = "fusion.input_embedding.weight"
    assert torch.equal(tensors[name], saved[name].flip(0))
    for kind in ("weight", "bias"):
        assert torch.equal(tensors[f"fusion.mix.0.{kind}"], saved[f"fusion.mix.1.{kind}"])
        assert torch.equal(tensors[f"fusion.mix.1.{kind}"], saved[f"fusion.mix.0.{kind}"])
    assert tensors.keys() == saved.keys()


def test_a_new_input_starts_at_random_and_known_ones_keep_their_tensors(folder):
    saved = load_file(folder / "model.safetensors")
    public = read_public(str(folder))
    model = build_own(inputs=("top", "back"))
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = public.fill(model)
    assert not result.missing
    state = model.state_dict()
    name = "fusion.input_embedding.weight"
    assert torch.equal(state[name], initial[name])
    assert torch.equal(state["fusion.mix.0.weight"], initial["fusion.mix.0.weight"])
    assert torch.equal(state["fusion.mix.1.weight"], saved["fusion.mix.1.weight"])
    name = "backbone.blocks.2.attn.qkv.weight"
    assert torch.equal(state[name], saved[name])


def test_an_own_model_is_not_used_as_a_public_one(folder):
    with pytest.raises(UserError, match="this model was trained with dxn; load it with run"):
        read_public(str(folder)).plan()


# Damaged folders


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml", "labels.json"])
def test_a_changed_file_is_refused(folder, name):
    path = folder / name
    content = bytearray(path.read_bytes())
    content[-1:] = bytes([content[-1] ^ 1]) if name == "model.safetensors" else b"\n\n"
    path.write_bytes(content)
    if name == "labels.json":
        path.write_text(json.dumps({**LABELS, "labels": ["x", "y", "w"]}))
    with pytest.raises(UserError, match=rf"^{path}: the file changed after it was saved"):
        read_public(str(folder))


def test_a_changed_model_card_is_accepted(folder):
    (folder / "README.md").write_text("# Another title\n")
    assert read_public(str(folder)).family.is_dxn


def test_a_missing_file_is_named(folder):
    path = folder / "labels.json"
    path.unlink()
    with pytest.raises(UserError, match=f"^{path}: file not found, although SHA256SUMS lists it"):
        read_public(str(folder))
    write_sums(folder)
    assert_refused(folder, f"{folder}: not a complete model folder, because labels.json is missing")


@pytest.mark.parametrize("name", ["../secret", "/secret", "a/b"])
def test_sums_of_files_in_other_folders_are_refused(folder, name):
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  {name}\n")
    with pytest.raises(
        UserError, match=r"SHA256SUMS: each line must have .* a file in this folder"
    ):
        read_public(str(folder))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "invalid JSON"),
        ("[]", "the content must be a mapping, got []"),
        ('{"labels": ["x"]}', "task is missing"),
        ('{"task": "classify", "labels": 5}', "labels must be a list, got 5"),
        ('{"task": "classify", "labels": [5]}', "labels.0 must be a text, got 5"),
    ],
)
def test_labels_of_another_form_are_refused(folder, content, message):
    path = folder / "labels.json"
    path.write_text(content)
    write_sums(folder)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read_public(str(folder))
    assert str(caught.value).startswith(str(path))


# config.yaml from elsewhere


def change_config(folder, **changes):
    """Set dotted keys of config.yaml; None removes a key."""
    config = copy.deepcopy(NODES)
    for key, value in changes.items():
        *parents, last = key.split("/")
        node = config
        for parent in parents:
            node = node[parent]
        node[last] = value
        if value is None:
            del node[last]
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    write_sums(folder)


@pytest.mark.parametrize("content", ["adapters: [", "- a\n- b\n", "text", "", "a: &a b\nc: *a\n"])
def test_a_config_that_is_no_mapping_is_refused(folder, content):
    (folder / "config.yaml").write_text(content)
    write_sums(folder)
    with pytest.raises(UserError, match=r"config\.yaml: "):
        read_public(str(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fusion": None}, "fusion is missing"),
        ({"head": "classify"}, "head must be a mapping, got 'classify'"),
        ({"backbone": {"dim": DIM}}, "backbone._target_ must be a text, got None"),
        ({"backbone/dim": None}, "backbone.dim must be a positive integer, got None"),
        ({"backbone/dim": "14"}, "backbone.dim must be a positive integer, got '14'"),
        ({"adapters": None}, "adapters is missing"),
        ({"adapters": {}}, "adapters must have at least 1 items, got {}"),
        ({"adapters": ["image"]}, "adapters must be a mapping, got ['image']"),
        (
            {"adapters/image": {"dim": DIM}},
            "adapters.image._target_ must be a text, got None",
        ),
        ({"adapters/image/_target_": 5}, "adapters.image._target_ must be a text, got 5"),
        ({"inputs": None}, "inputs is missing"),
        ({"inputs/front": "image"}, "inputs.front must be a mapping, got 'image'"),
        ({"inputs/front/adapter": "text"}, "inputs.front.adapter must be one of image, got 'text'"),
    ],
)
def test_a_config_of_another_form_is_refused(folder, changes, message):
    change_config(folder, **changes)
    with pytest.raises(UserError) as caught:
        read_public(str(folder))
    path = folder / "config.yaml"
    assert str(caught.value) == f"{path}: not valid: {message}"


@pytest.mark.parametrize(
    "key", ["fusion/_target_", "adapters/image/_target_", "backbone/norm/_target_", "head/other"]
)
@pytest.mark.parametrize(
    "target",
    ["os.system", "my_package.Part", "dxn.commands.train.run", "dxn.config.instantiate.build"],
)
def test_a_config_that_names_anything_but_dxns_parts_is_refused(folder, monkeypatch, key, target):
    monkeypatch.setattr("importlib.import_module", lambda name, *_: pytest.fail(f"imported {name}"))
    value = {"_target_": target, "command": "true"} if key.endswith("other") else target
    change_config(folder, **{key: value})
    with pytest.raises(UserError, match=target):
        read_public(str(folder))


def test_a_trusted_package_may_be_named(folder):
    change_config(folder, **{"head/_target_": "my_package.MyTask"})
    with pytest.raises(UserError, match=r"my_package\.MyTask.*trust=\[my_package\]"):
        read_public(str(folder))
    public = read_public(str(folder), trust=["my_package"])
    assert public.architecture.head["_target_"] == "my_package.MyTask"


def test_a_config_of_another_program_next_to_public_weights_is_ignored(tmp_path):
    (tmp_path / "config.yaml").write_text("trainer:\n  epochs: 3\n")
    save_file({"a": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert_refused(tmp_path, f"{tmp_path}: does not belong to a supported family")
