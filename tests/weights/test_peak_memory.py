"""The memory that loading takes: the weights in their final type, and little else."""

import json
import subprocess
import sys
from functools import cache

import pytest
import torch
from helpers.peers import cases
from safetensors.torch import load_file

import dxn
from dxn.core import tensors
from dxn.core.errors import UserError
from dxn.core.tensors import TensorFiles, write_tensors
from dxn.runs.saved import model_folder
from dxn.weights import read_public

T = cases.T
pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
SHARE = 1.15  # of the weights
EXTRA = tensors.MAX_MAPPED / 1e6  # MB of a file that are read before it is opened again
# Load each model and print the peak of the memory above that before, and the size of its weights.
SCRIPT = """
import gc, json, sys
import dxn
from dxn.core.runtime import release_memory

def memory(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1e3 for line in file if line.startswith(key))

def load(how, folder, dtype):
    return (dxn.load if how == "load" else dxn.from_public)(folder, dtype=dtype)

for case in json.loads(sys.argv[1]):
    load(case[0], case[1] + "/small", case[2])  # what is imported and compiled once
    gc.collect()
    release_memory()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts again
    before = memory("VmRSS")
    model = load(*case).model
    peak = memory("VmHWM") - before
    # The number of weights, because packed ones do not know their size.
    count = sum(value.numel() for value in {id(p): p for p in model.parameters()}.values())
    print(json.dumps([peak, count * (2 if case[2] == "bf16" else 4) / 1e6]))
    del model
"""


def save(folder, dim, depth, dtype, *, binary=False):
    """A GPT-2 with random weights, in several files."""
    torch.manual_seed(0)
    config = T.GPT2Config(
        n_embd=dim, n_layer=depth, n_head=4, vocab_size=997, n_positions=64, bos_token_id=1
    )
    model = T.GPT2LMHeadModel(config).to(dtype)
    model.save_pretrained(folder, max_shard_size="20MB")
    cases.save_tokenizer(folder, vocab_size=997)
    if binary:
        for path in folder.glob("*.safetensors*"):
            path.unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")


DTYPES = {"single": torch.float32, "half": torch.bfloat16, "binary": torch.float32}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """A function that makes a folder of 100 MB, with a small model of its kind in a subfolder."""
    root = tmp_path_factory.mktemp("models")

    @cache
    def make(name):
        if name == "saved":
            # The small one is the second one, because saving replaces the whole folder.
            for part in ("", "small"):
                source = make("single") / part
                predictor = dxn.from_public(str(source), dtype="float32")
                options = {"plan": read_public(str(source)).plan(), "task": predictor.task}
                model_folder.save(root / name / part, model=predictor.model, card="", **options)
            return root / name
        dtype, is_binary = DTYPES[name], name == "binary"
        save(root / name, 512, 16 if name == "half" else 8, dtype, binary=is_binary)
        save(root / name / "small", 64, 1, dtype, binary=is_binary)
        return root / name

    return make


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
@pytest.mark.exhaustive
def test_loading_takes_the_memory_of_the_weights_in_their_final_type(folder_of):
    listed = [
        ("from_public", "single", "float32"),
        ("from_public", "single", "bf16"),
        ("from_public", "half", "float32"),
        ("from_public", "half", "bf16"),
        ("from_public", "binary", "float32"),
        ("load", "saved", "float32"),
        ("load", "saved", "bf16"),
    ]
    argument = json.dumps([(how, str(folder_of(name)), dtype) for how, name, dtype in listed])
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, argument], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    measured = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(measured) == len(listed)
    for case, (peak, size) in zip(listed, measured, strict=True):
        assert size > 50
        assert peak < SHARE * size + EXTRA, (case, peak, size)


def test_the_weights_of_a_file_in_bf16_keep_their_bits(folder_of):
    source = folder_of("half")
    checkpoint = read_public(str(source)).checkpoint.tensors
    for dtype in ("float32", "bf16"):
        model = dxn.from_public(str(source), dtype=dtype).model
        weight = model.state_dict()["backbone.blocks.3.mlp.up.weight"]
        expected = checkpoint["transformer.h.3.mlp.c_fc.weight"].T
        assert weight.dtype == (torch.bfloat16 if dtype == "bf16" else torch.float32)
        assert torch.equal(weight.to(torch.bfloat16), expected)
        assert not any(parameter.is_meta for parameter in model.parameters())


def test_a_large_tensor_that_a_checkpoint_lacks_keeps_its_initial_values(folder_of, tmp_path):
    single = folder_of("single")
    state = dict(TensorFiles(sorted(single.glob("*.safetensors"))))
    del state["transformer.h.1.mlp.c_fc.weight"]
    write_tensors(tmp_path / "model.safetensors", state)
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((single / name).read_bytes())
    with pytest.raises(UserError, match="missing tensors"):
        dxn.from_public(str(tmp_path))
    state = dxn.from_public(str(tmp_path), strict=False, dtype="float32").model.state_dict()
    assert 0 < state["backbone.blocks.1.mlp.up.weight"].std() < 0.1
    expected = dxn.from_public(str(single), dtype="float32").model.state_dict()
    same = [name for name in state if torch.equal(state[name], expected[name])]
    assert len(same) == len(state) - 1


def test_the_tensors_of_files_are_those_of_each_file(folder_of, monkeypatch):
    monkeypatch.setattr(tensors, "MAX_MAPPED", 10_000)  # opened again for nearly every tensor
    paths = sorted(folder_of("single").glob("*.safetensors"))
    files = TensorFiles(paths)
    expected = {name: tensor for path in paths for name, tensor in load_file(path).items()}
    assert len(paths) > 3
    assert set(files) == set(expected)
    assert "transformer.h.1.mlp.c_fc.weight" in files
    assert "transformer.h.99.mlp.c_fc.weight" not in files
    for name in reversed(list(files)):
        assert torch.equal(files[name], expected[name])
