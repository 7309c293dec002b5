"""Families of other packages: by an entry point or by the list, without any change to dxn."""

import sys
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
import torch
from helpers.checkpoints import assert_refused
from safetensors.torch import save_file
from torch import nn

from dxn.core.errors import UserError
from dxn.models import MultimodalModel
from dxn.weights import FAMILIES, Architecture, Family, TensorSource, all_families, read_public
from dxn.weights import families as registry

DIM = 6
# What a user writes: a family of 12 lines, here of mel frames without any transformer block.
TOY = Family(
    "toy",
    matches=lambda checkpoint: "toy.projection" in checkpoint,
    architecture=lambda checkpoint: Architecture(
        dim=len(checkpoint.tensors["toy.projection"]),
        adapters={"audio": {"frame_size": 2, "spectrogram": {"n_mels": 5}}},
        backbone={"depth": 0, "num_heads": 2, "norm": {"final_norm": False}},
        fusion={"pool": "max"},
    ),
    tensor_map=lambda checkpoint, architecture: {
        "adapters.audio.proj.weight": TensorSource(("toy.projection",), lambda t: t),
        "adapters.audio.proj.bias": TensorSource(("toy.projection",), lambda t: t[:, 0] * 0),
    },
)


@pytest.fixture(autouse=True)
def _fresh_entry_points():
    registry._installed_families.cache_clear()
    yield
    registry._installed_families.cache_clear()


def install(monkeypatch, *entry_points):
    """Pretend that packages with these entry points are installed; returns the calls."""
    calls = []

    def find(*, group):
        calls.append(group)
        return list(entry_points)

    monkeypatch.setattr(registry, "entry_points", find)
    return calls


@pytest.fixture
def toy_package(monkeypatch):
    """An importable module `toy_package` with the family TOY."""
    module = type(sys)("toy_package")
    module.TOY = TOY
    module.number = 5
    monkeypatch.setitem(sys.modules, "toy_package", module)


def entry(value, name="toy"):
    return EntryPoint(name=name, value=value, group="dxn.families")


@pytest.fixture
def toy_checkpoint(tmp_path):
    save_file({"toy.projection": torch.randn(DIM, 10)}, tmp_path / "model.safetensors")
    return tmp_path


def test_a_family_of_an_entry_point_is_used(toy_package, toy_checkpoint, monkeypatch):
    assert_refused(toy_checkpoint, f"{toy_checkpoint}: does not belong to a supported family")
    registry._installed_families.cache_clear()
    install(monkeypatch, entry("toy_package:TOY"))
    public = read_public(str(toy_checkpoint))
    assert public.family is TOY
    assert public.plan().adapters["audio"]["_target_"] == "dxn.tokenize.AudioAdapter"


def test_a_family_that_a_program_appends_is_used_and_fills_a_model(toy_checkpoint, monkeypatch):
    monkeypatch.setattr(registry, "FAMILIES", [*FAMILIES, TOY])
    public = read_public(str(toy_checkpoint))
    adapter = nn.Module()
    adapter.modality = "audio"
    adapter.has_vocabulary = False
    adapter.proj = nn.Linear(10, DIM)
    model = MultimodalModel(
        {"audio": adapter},
        inputs={"audio": "audio"},
        fusion=nn.Identity(),
        backbone=nn.Identity(),
        head=nn.Identity(),
    )
    result = public.fill(model)
    assert not result.missing
    assert not result.unexpected
    assert torch.equal(adapter.proj.weight, public.checkpoint.tensors["toy.projection"])


def test_entry_points_are_loaded_once(toy_package, monkeypatch):
    calls = install(monkeypatch, entry("toy_package:TOY"))
    assert all_families() == (*FAMILIES, TOY)
    assert all_families() == (*FAMILIES, TOY)
    assert calls == ["dxn.families"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("package_that_is_gone:FAMILY", "cannot be loaded (ModuleNotFoundError: "),
        ("toy_package:MISSING", "cannot be loaded (AttributeError: "),
        ("toy_package:number", "must be a dxn.weights.Family, got int"),
    ],
)
def test_a_broken_entry_point_is_named(value, reason, toy_package, toy_checkpoint, monkeypatch):
    install(monkeypatch, entry(value))
    with pytest.raises(UserError) as caught:
        read_public(str(toy_checkpoint))
    message = str(caught.value)
    assert message.startswith(f"entry point dxn.families: toy = {value}: {reason}"), message


def test_two_families_without_a_part_name_both(toy_checkpoint, monkeypatch):
    monkeypatch.setattr(registry, "FAMILIES", [TOY, replace(TOY, name="copy of toy")])
    message = assert_refused(toy_checkpoint, f"{toy_checkpoint}: contains toy and copy of toy")
    assert "weights.part" not in message


def test_a_family_may_bring_its_own_adapter(toy_checkpoint, monkeypatch):
    def family(**options):
        architecture = Architecture(dim=DIM, adapters={"depth": options}, backbone={})
        return replace(TOY, architecture=lambda checkpoint: architecture)

    monkeypatch.setattr(registry, "FAMILIES", [family(_target_="toy_package.DepthAdapter")])
    plan = read_public(str(toy_checkpoint)).plan()
    assert plan.adapters["depth"] == {"_target_": "toy_package.DepthAdapter", "dim": DIM}
    monkeypatch.setattr(registry, "FAMILIES", [family()])
    with pytest.raises(UserError, match=r"toy: dxn has no adapter 'depth'; .* option _target_"):
        read_public(str(toy_checkpoint)).plan()
