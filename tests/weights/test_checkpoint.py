"""Checkpoints on disk and on the hub, and what cannot be read."""

import json
import pickle
from pathlib import Path

import huggingface_hub
import pytest
import torch
from helpers.checkpoints import (
    assert_refused,
    assert_same_tensors,
    model_of,
    random_tensors,
    save_peer,
)
from helpers.peers import cases
from huggingface_hub import errors
from safetensors.torch import load_file, save_file

from dxn.core.errors import UserError
from dxn.weights import FAMILIES, Checkpoint, read_checkpoint, read_public

timm = cases.timm
pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")

# Reading


def test_a_safetensors_file_is_read_by_its_path(tmp_path):
    tensors = random_tensors()
    save_file(tensors, tmp_path / "any name.safetensors")
    checkpoint = read_checkpoint(str(tmp_path / "any name.safetensors"))
    assert_same_tensors(checkpoint.tensors, tensors)
    assert checkpoint.config == checkpoint.preprocessor == {}


@pytest.mark.parametrize("name", ["model.safetensors", "open_clip_model.safetensors"])
def test_a_folder_is_read_with_the_files_next_to_the_weights(name, tmp_path):
    tensors = random_tensors()
    save_file(tensors, tmp_path / name)
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    (tmp_path / "preprocessor_config.json").write_text('{"size": 5}')
    for source in (tmp_path, tmp_path / name):
        checkpoint = read_checkpoint(str(source))
        assert_same_tensors(checkpoint.tensors, tensors)
        assert checkpoint.config == {"model_type": "x"}
        assert checkpoint.preprocessor == {"size": 5}


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_the_shards_of_a_folder_are_put_together(name, tmp_path):
    tensors = random_tensors()
    write = save_file if name.endswith("safetensors") else torch.save
    shards = {key: f"part-{i}-{name}" for i, key in enumerate(tensors)}
    for key, file in shards.items():
        write({key: tensors[key]}, tmp_path / file)
    (tmp_path / f"{name}.index.json").write_text(json.dumps({"weight_map": shards}))
    assert_same_tensors(read_checkpoint(str(tmp_path)).tensors, tensors)


@pytest.mark.parametrize(
    "wrap", [lambda t: t, lambda t: {"model": t, "epoch": 3}, lambda t: {"state_dict": t}]
)
@pytest.mark.parametrize("name", ["w.pth", "w.pt", "pytorch_model.bin"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_torch_state_dict_is_read_plain_and_nested(wrap, name, zipped, tmp_path):
    tensors = random_tensors()
    torch.save(wrap(tensors), tmp_path / name, _use_new_zipfile_serialization=zipped)
    assert_same_tensors(read_checkpoint(str(tmp_path / name)).tensors, tensors)


def test_safetensors_are_preferred_to_a_pickle_in_the_same_folder(tmp_path):
    tensors = random_tensors()
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    assert_same_tensors(read_checkpoint(str(tmp_path)).tensors, tensors)


def test_tensors_are_read_in_the_type_of_the_file(tmp_path):
    types = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64)
    saved = {str(i): torch.arange(5).to(dtype) for i, dtype in enumerate(types)}
    save_file(saved, tmp_path / "w.safetensors")
    tensors = read_checkpoint(str(tmp_path / "w.safetensors")).tensors
    assert [tensors[str(i)].dtype for i in range(5)] == list(types)
    assert all(tensor.tolist() == [0, 1, 2, 3, 4] for tensor in tensors.values())


# What cannot be read


@pytest.mark.parametrize("name", ["nowhere.safetensors", "owner/nowhere.pth", "./nowhere", "a/b/c"])
def test_a_source_that_is_neither_a_path_nor_a_hub_id_is_refused(name, monkeypatch):
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked the hub")
    )
    assert_refused(name, f"{name}: not found; pass a file, a folder or a hub id OWNER/NAME")


def test_a_folder_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    names = "model.safetensors, open_clip_model.safetensors, pytorch_model.bin"
    assert_refused(
        tmp_path, f"{tmp_path}: no weights in this folder; it must contain one of {names}"
    )


def test_a_run_without_a_model_is_refused(tmp_path):
    (tmp_path / ".hydra").mkdir()
    assert_refused(tmp_path, f"{tmp_path}: this run has not saved a model yet")


@pytest.mark.parametrize("kept", [0, 5, 40, -4])
def test_a_truncated_safetensors_file_is_refused(kept, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(random_tensors(), path)
    path.write_bytes(path.read_bytes()[:kept])
    for source in (path, tmp_path):
        assert_refused(source, f"{path}: damaged or truncated safetensors file (")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kept", [0, 3, 30, 100, 0.5, -4])
def test_a_truncated_torch_file_is_refused(kept, zipped, tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save(random_tensors(), path, _use_new_zipfile_serialization=zipped)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept) if kept == 0.5 else kept])
    assert_refused(path, f"{path}: damaged or truncated file, or not written by torch.save (")


@pytest.mark.parametrize(
    "content",
    [b"<html>404</html>", b"version https://git-lfs.github.com/spec/v1\n", b"0", b"\x80"],
)
def test_a_file_that_is_no_torch_file_is_not_reported_to_contain_code(content, tmp_path):
    path = tmp_path / "w.bin"
    path.write_bytes(content)
    assert_refused(path, f"{path}: damaged or truncated file, or not written by torch.save (")


class Trap:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "write",
    [
        lambda value, path: torch.save({"a": torch.zeros(3), "b": value}, path),
        lambda value, path: torch.save({"a": value}, path, _use_new_zipfile_serialization=False),
        lambda value, path: path.write_bytes(pickle.dumps(value, protocol=2)),
    ],
    ids=["zip", "old", "bare pickle"],
)
def test_code_in_a_pickle_is_refused_and_never_executed(write, tmp_path):
    created = tmp_path / "created"
    path = tmp_path / "pytorch_model.bin"
    pickle.loads(pickle.dumps(Trap(created)))  # the trap works
    assert created.exists()
    created.unlink()
    write(Trap(created), path)
    message = (
        f"{path}: contains code, not only tensors; it was not executed. Use a safetensors file"
    )
    for source in (path, tmp_path):
        assert_refused(source, message)
        assert not created.exists()


@pytest.mark.parametrize(
    "content",
    [
        [torch.zeros(3)],
        torch.zeros(3),
        {"a": torch.zeros(3), "step": 5},
        {"model": {"a": 1}},
    ],
)
def test_a_torch_file_without_a_state_dict_is_refused(content, tmp_path):
    path = tmp_path / "w.pth"
    torch.save(content, path)
    assert_refused(path, f"{path}: must contain a state dict (tensors by name), and nothing else")


def test_a_missing_shard_is_named(tmp_path):
    index = {"weight_map": {"a.weight": "one.safetensors", "b.bias": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"a.weight": torch.zeros(3)}, tmp_path / "one.safetensors")
    path = tmp_path / "two.safetensors"
    assert_refused(tmp_path, f"{path}: file not found, although the index of the checkpoint")


@pytest.mark.parametrize(
    "content", ["{}", "[]", '{"weight_map": ["a"]}', '{"weight_map": {"a": 5}}']
)
def test_an_index_without_a_weight_map_is_refused(content, tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content)
    assert_refused(tmp_path, f"{path}: weight_map must be a mapping")


@pytest.mark.parametrize("shard", ["../a.safetensors", "/a.safetensors"])
def test_a_shard_outside_of_the_folder_is_refused(shard, tmp_path):
    (tmp_path / "model").mkdir()
    save_file(random_tensors(), tmp_path / "a.safetensors")
    path = tmp_path / "model" / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a.weight": shard}}))
    assert_refused(
        path.parent, f"{path}: must contain names of files in the same folder, got {shard!r}"
    )


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe{"])
def test_invalid_json_next_to_the_weights_is_named(name, content, tmp_path):
    save_file(random_tensors(), tmp_path / "model.safetensors")
    (tmp_path / name).write_bytes(content)
    reason = "cannot be read as UTF-8" if content.startswith(b"\xff") else "invalid JSON ("
    assert_refused(tmp_path, f"{tmp_path / name}: {reason}")


DAMAGED = [
    ({"hidden_size": 0}, "not valid: hidden_size must be at least 1, got 0"),
    ({"n_layer": 10**6}, "not valid: n_layer must be at most 1000, got 1000000"),
    ({"layer_norm_eps": "1e-5"}, "not valid: layer_norm_eps must be a number, got '1e-5'"),
    ({"conv_dim": []}, "not valid: conv_dim must have at least 1 items, got []"),
    ({"id2label": ["a"]}, "not valid: id2label must be a mapping, got ['a']"),
    ({"text_config": 3}, "not valid: text_config must be a mapping, got 3"),
    (
        {"vision_config": {"image_size": -4}},
        "vision_config: not valid: image_size.constrained-int must be at least 1, got -4",
    ),
]


@pytest.mark.parametrize(("config", "message"), DAMAGED, ids=[message for _, message in DAMAGED])
def test_a_setting_that_cannot_be_right_is_named(config, message, tmp_path):
    save_file(random_tensors(), tmp_path / "model.safetensors")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert_refused(tmp_path, f"{path}: {message}")


def test_a_file_of_no_family_lists_the_families_and_its_own_tensors(tmp_path):
    tensors = {f"layer{i}.weight": torch.zeros(3) for i in range(11)}
    save_file(tensors, tmp_path / "model.safetensors")
    message = assert_refused(
        tmp_path, f"{tmp_path}: does not belong to a supported family (ViT of timm, "
    )
    assert all(family.name in message for family in FAMILIES)
    first = "layer0.weight, layer1.weight, layer10.weight, layer2.weight"
    assert f"got the tensors {first}" in message
    assert " and 3 more; use another checkpoint" in message
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
    assert "got model_type='deberta-v2'; use another" in assert_refused(tmp_path, str(tmp_path))


@pytest.mark.parametrize(
    "name",
    ["beit_base_patch16_224", "vit_relpos_small_patch16_224", "swin_tiny_patch4_window7_224"],
)
def test_other_models_of_timm_are_not_taken_for_a_vit(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    checkpoint = Checkpoint(name, model.state_dict(), {"architecture": name})
    assert not any(family.matches(checkpoint) for family in FAMILIES)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_a_quantized_model_is_refused(dtype, tmp_path):
    save_peer("BERT", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if name.endswith("attention.output.dense.weight"))
    save_file({**tensors, name: tensors[name].to(dtype)}, tmp_path / "model.safetensors")
    public = read_public(str(tmp_path))
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(UserError, match=f"{name} has the type {kind}, as in a quantized model"):
        public.fill(model_of(public))
    path = tmp_path / "config.json"
    config = {**json.loads(path.read_text()), "quantization_config": {"quant_method": "fp8"}}
    path.write_text(json.dumps(config))
    assert_refused(tmp_path, f"{tmp_path}: its weights are quantized (quantization_config in")


def test_an_adapter_without_its_model_is_refused(tmp_path):
    tensors = {"base_model.lora_A.weight": torch.zeros(2, 3)}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/name"}')
    assert_refused(tmp_path, f"{tmp_path}: contains only an adapter (PEFT) of the model owner/name")


# The hub


def http_error(kind):
    error = kind.__new__(kind)  # its constructor needs a response of the HTTP library
    Exception.__init__(error, "the client's own words")
    return error


NOT_FOUND = "owner/name: neither a local file or folder nor a public repository on the hub"
OFFLINE = "owner/name: the hub cannot be reached, and the model is not in the local cache"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (http_error(errors.RepositoryNotFoundError), NOT_FOUND),
        (http_error(errors.GatedRepoError), NOT_FOUND),
        (http_error(errors.RevisionNotFoundError), "owner/name: the hub has no revision 'v5'"),
        (errors.LocalEntryNotFoundError("no network, nothing cached"), OFFLINE),
        (http_error(errors.HfHubHTTPError), OFFLINE),
        (errors.OfflineModeIsEnabled("offline"), OFFLINE),
        (OSError("no route"), OFFLINE),
        (RuntimeError("an error of another library, such as a proxy's"), OFFLINE),
    ],
    ids=lambda v: type(v).__name__,
)
def test_every_error_of_the_hub_becomes_one_sentence(error, message, monkeypatch):
    def download(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert_refused("owner/name", message, revision="v5")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_pickles_are_downloaded_only_if_there_is_no_safetensors_file(name, tmp_path, monkeypatch):
    tensors = random_tensors()
    write = save_file if name.endswith("safetensors") else torch.save
    write(tensors, tmp_path / name)
    requests = []

    def download(repo, *, revision, allow_patterns):
        requests.append((repo, revision, "*.bin" in allow_patterns))
        assert {"*.json", "*.txt", "*.safetensors"} <= set(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    checkpoint = read_checkpoint("owner/na.me-5", revision="abc")
    assert_same_tensors(checkpoint.tensors, tensors)
    assert checkpoint.source == "owner/na.me-5"
    assert checkpoint.folder == tmp_path
    expected = [("owner/na.me-5", "abc", False)]
    if not name.endswith("safetensors"):
        expected.append(("owner/na.me-5", "abc", True))
    assert requests == expected
