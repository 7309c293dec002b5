"""Checkpoints for tests: public models as their libraries save them, and what is asked of reading them."""

import json

import pytest
import torch
from peers import parity
from safetensors.torch import load_file, save_file

from dxn.errors import UserError
from dxn.weights import read_public

CASES = {case.name: case for case in parity.CASES}
SIZES = parity.Sizes(dim=12, depth=2, heads=2, batch=2, side=40, length=11)


def tensors():
    return {"a.weight": torch.randn(3, 5), "b.bias": torch.randn(7)}


def same(found, expected):
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def saved(name, folder, **config):
    """A peer of this name, as its library saves it; config: what is changed in its config.json, towers too."""
    case = CASES[name]
    parity.save(case, case.make(SIZES), folder, heads=SIZES.heads)
    found = json.loads((folder / "config.json").read_text())
    for key, value in config.items():
        found[key] = {**found[key], **value} if isinstance(value, dict) and key in found else value
        if value is None:
            del found[key]
    (folder / "config.json").write_text(json.dumps(found))
    return folder


def change(folder, **edit):
    """Rewrite the safetensors file: a tensor a name, None where it is left out."""
    state = {**load_file(folder / "model.safetensors"), **edit}
    save_file({k: t for k, t in state.items() if t is not None}, folder / "model.safetensors", {"format": "pt"})


def refused(source, message, **known):
    """The message of the refusal, which begins with `weights: ` and this."""
    with pytest.raises(UserError) as caught:
        read_public(str(source), **known)
    assert str(caught.value).startswith(f"weights: {message}"), caught.value
    return str(caught.value)


def model_of(public):
    nodes = public.nodes()
    adapters = {name: parity.construct(node) for name, node in nodes["adapters"].items()}
    public.prepare(adapters)
    rest = {name: parity.construct(nodes[name]) for name in ("fusion", "backbone", "head")}
    return parity.Model(adapters, **rest)
