"""Checkpoints as they lie on disk or on the hub, and what cannot be read."""

import json
import pickle
from pathlib import Path

import huggingface_hub
import pytest
import torch
from checkpoints import refused, same, tensors
from huggingface_hub import errors
from peers import parity
from safetensors.torch import save_file

from dxn.weights.checkpoint import Checkpoint, read_checkpoint
from dxn.weights.public import FAMILIES

timm = parity.timm
pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")

# Reading


def test_a_safetensors_file_is_read_by_its_path(tmp_path):
    given = tensors()
    save_file(given, tmp_path / "any name.safetensors")
    found = read_checkpoint(str(tmp_path / "any name.safetensors"))
    same(found.tensors, given)
    assert found.config == found.preprocessor == {}


@pytest.mark.parametrize("name", ["model.safetensors", "open_clip_model.safetensors"])
def test_a_folder_is_read_with_what_lies_beside_the_weights(name, tmp_path):
    given = tensors()
    save_file(given, tmp_path / name)
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    (tmp_path / "preprocessor_config.json").write_text('{"size": 5}')
    for source in (tmp_path, tmp_path / name):
        found = read_checkpoint(str(source))
        same(found.tensors, given)
        assert (found.config, found.preprocessor) == ({"model_type": "x"}, {"size": 5})


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_sharded_folder_is_put_together(name, tmp_path):
    given, write = tensors(), save_file if name.endswith("safetensors") else torch.save
    shards = {key: f"part-{i}-{name}" for i, key in enumerate(given)}
    for key, file in shards.items():
        write({key: given[key]}, tmp_path / file)
    (tmp_path / f"{name}.index.json").write_text(json.dumps({"weight_map": shards}))
    same(read_checkpoint(str(tmp_path)).tensors, given)


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: {"model": t, "epoch": 3}, lambda t: {"state_dict": t}])
@pytest.mark.parametrize("name", ["w.pth", "w.pt", "pytorch_model.bin"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_torch_state_dict_is_read_plain_and_nested(wrap, name, zipped, tmp_path):
    given = tensors()
    torch.save(wrap(given), tmp_path / name, _use_new_zipfile_serialization=zipped)
    same(read_checkpoint(str(tmp_path / name)).tensors, given)


def test_safetensors_go_before_a_pickle_in_the_same_folder(tmp_path):
    given = tensors()
    save_file(given, tmp_path / "model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    same(read_checkpoint(str(tmp_path)).tensors, given)


def test_half_precision_is_made_single_and_the_rest_is_kept(tmp_path):
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64)
    save_file({str(i): torch.arange(5).to(kind) for i, kind in enumerate(kinds)}, tmp_path / "w.safetensors")
    found = read_checkpoint(str(tmp_path / "w.safetensors")).tensors
    single = torch.float32
    assert [found[str(i)].dtype for i in range(5)] == [single, single, single, torch.float64, torch.int64]
    assert all(t.tolist() == [0, 1, 2, 3, 4] for t in found.values())


# What cannot be read


@pytest.mark.parametrize("name", ["nowhere.safetensors", "owner/nowhere.pth", "./nowhere", "a/b/c"])
def test_what_is_neither_a_path_nor_a_hub_id_is_said_to_be_neither(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    refused(name, f"{name}: no such file or folder; a hub id is OWNER/NAME")


def test_a_folder_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, f"{tmp_path}: none of model.safetensors, open_clip_model.safetensors, pytorch_model.bin")


@pytest.mark.parametrize("kept", [0, 5, 40, -4])
def test_a_truncated_safetensors_file_is_refused(kept, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(tensors(), path)
    path.write_bytes(path.read_bytes()[:kept])
    for source in (path, tmp_path):
        refused(source, f"{path}: damaged or truncated safetensors file (")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kept", [0, 3, 30, 100, 0.5, -4])
def test_a_truncated_torch_file_is_refused(kept, zipped, tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save(tensors(), path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept) if kept == 0.5 else kept])
    refused(path, f"{path}: damaged or truncated torch file, or none at all (")


@pytest.mark.parametrize(
    "content", [b"<html>404</html>", b"version https://git-lfs.github.com/spec/v1\n", b"0", b"\x80"]
)
def test_what_is_no_torch_file_at_all_is_not_said_to_hold_code(content, tmp_path):
    (tmp_path / "w.bin").write_bytes(content)
    refused(tmp_path / "w.bin", f"{tmp_path / 'w.bin'}: damaged or truncated torch file, or none at all (")


class Trap:
    """Whose unpickling makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "write",
    [
        lambda what, path: torch.save({"a": torch.zeros(3), "b": what}, path),
        lambda what, path: torch.save({"a": what}, path, _use_new_zipfile_serialization=False),
        lambda what, path: path.write_bytes(pickle.dumps(what, protocol=2)),
    ],
    ids=["zip", "old", "bare pickle"],
)
def test_code_in_a_pickle_is_refused_and_never_run(write, tmp_path):
    trap, path = tmp_path / "sprung", tmp_path / "pytorch_model.bin"
    pickle.loads(pickle.dumps(Trap(trap)))  # it would work
    assert trap.exists()
    trap.unlink()
    write(Trap(trap), path)
    for source in (path, tmp_path):
        refused(source, f"{path}: holds code, not only tensors; it was not run. Ask for a safetensors file")
        assert not trap.exists()


@pytest.mark.parametrize(
    "what", [[torch.zeros(3)], torch.zeros(3), {"a": torch.zeros(3), "step": 5}, {"model": {"a": 1}}]
)
def test_a_torch_file_of_other_things_is_refused(what, tmp_path):
    torch.save(what, tmp_path / "w.pth")
    refused(tmp_path / "w.pth", f"{tmp_path / 'w.pth'}: must hold tensors by name, a state dict, and nothing else")


def test_a_missing_shard_is_named(tmp_path):
    index = {"weight_map": {"a.weight": "one.safetensors", "b.bias": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"a.weight": torch.zeros(3)}, tmp_path / "one.safetensors")
    refused(tmp_path, f"{tmp_path / 'two.safetensors'}: no such file, though the index lists it")


@pytest.mark.parametrize("content", ["{}", "[]", '{"weight_map": ["a"]}'])
def test_an_index_that_lists_nothing_is_refused(content, tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content)
    refused(tmp_path, f"{path}: it has no weight_map")


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe{"])
def test_broken_json_beside_the_weights_is_named(name, content, tmp_path):
    save_file(tensors(), tmp_path / "model.safetensors")
    (tmp_path / name).write_bytes(content)
    refused(tmp_path, f"{tmp_path / name}: not JSON (")


def test_a_file_of_no_known_family_lists_the_families_and_its_own_tensors(tmp_path):
    save_file({f"layer{i}.weight": torch.zeros(3) for i in range(11)}, tmp_path / "model.safetensors")
    message = refused(tmp_path, f"{tmp_path}: of no family that dxn knows (ViT of timm, ")
    assert all(family.name in message for family in FAMILIES)
    assert "its tensors are layer0.weight, layer1.weight, layer10.weight, layer2.weight" in message
    assert message.endswith(" and 3 more")


@pytest.mark.parametrize(
    "name", ["beit_base_patch16_224", "vit_relpos_small_patch16_224", "swin_tiny_patch4_window7_224"]
)
def test_timms_models_of_other_kinds_are_not_taken_for_a_vit(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    found = Checkpoint(name, model.state_dict(), {"architecture": name})
    assert not any(family.knows(found) for family in FAMILIES)


# The hub


def http(kind):
    error = kind.__new__(kind)  # past a constructor that wants a response of whichever client
    Exception.__init__(error, "the client's own words")
    return error


NOBODY = "owner/name: neither a file or folder here nor a repository on the hub that can be read"
OFFLINE = "owner/name: the hub cannot be reached, and it is not in the local cache"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (http(errors.RepositoryNotFoundError), NOBODY),
        (http(errors.GatedRepoError), NOBODY),
        (http(errors.RevisionNotFoundError), "owner/name: the hub has no revision v5 of it"),
        (errors.LocalEntryNotFoundError("no network, nothing cached"), OFFLINE),
        (http(errors.HfHubHTTPError), OFFLINE),
        (errors.OfflineModeIsEnabled("offline"), OFFLINE),
        (OSError("no route"), OFFLINE),
        (RuntimeError("a proxy's error, of another library"), OFFLINE),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_the_hub_cannot_give_is_one_sentence(error, message, monkeypatch):
    def download(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    refused("owner/name", message, revision="v5")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_hub_id_is_downloaded_at_its_revision_and_pickles_only_where_nothing_else_is(name, tmp_path, monkeypatch):
    given, asked = tensors(), []
    (save_file if name.endswith("safetensors") else torch.save)(given, tmp_path / name)

    def download(repo, *, revision, allow_patterns):
        asked.append((repo, revision, "*.bin" in allow_patterns))
        assert {"*.json", "*.txt", "*.safetensors"} <= set(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    found = read_checkpoint("owner/na.me-5", revision="abc")
    same(found.tensors, given)
    assert (found.source, found.folder) == ("owner/na.me-5", tmp_path)
    first = ("owner/na.me-5", "abc", False)
    assert asked == ([first] if name.endswith("safetensors") else [first, (*first[:2], True)])
