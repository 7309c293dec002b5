"""Checkpoints for tests: public models saved as their libraries save them."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from dxn.config.instantiate import build
from dxn.core.errors import UserError
from dxn.weights import read_public
from helpers.peers import CASES, cases, parity

SIZES = cases.Sizes(dim=12, depth=2, heads=2, batch=2, side=40, length=11)


def random_tensors():
    return {"a.weight": torch.randn(3, 5), "b.bias": torch.randn(7)}


def assert_same_tensors(tensors, expected):
    assert set(tensors) == set(expected)
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def save_peer(name, folder, **config):
    """Save the public model of this name; `config` changes keys of its config.json.

    A dict changes the keys of a nested mapping, None removes a key.
    """
    case = CASES[name]
    cases.save(case, case.make(SIZES), folder, heads=SIZES.heads)
    path = folder / "config.json"
    content = json.loads(path.read_text())
    for key, value in config.items():
        is_nested = isinstance(value, dict) and key in content
        content[key] = {**content[key], **value} if is_nested else value
        if value is None:
            del content[key]
    path.write_text(json.dumps(content))
    return folder


def change_tensors(folder, **changes):
    """Rewrite model.safetensors with changed tensors; None removes a tensor."""
    path = folder / "model.safetensors"
    state = {**load_file(path), **changes}
    kept = {name: tensor for name, tensor in state.items() if tensor is not None}
    save_file(kept, path, {"format": "pt"})


def assert_refused(source, message, **options):
    """Reading the source fails with a message that starts like this; returns the message."""
    with pytest.raises(UserError) as caught:
        read_public(str(source), **options)
    assert str(caught.value).startswith(f"weights: {message}"), caught.value
    return str(caught.value)


def model_of(public, plan=None):
    """The dxn model of a checkpoint, with initial weights."""
    return parity.build_model(public, plan)


def adapter_of(folder, modality, *, part=None, **options):
    """The adapter that a user of this checkpoint gets; options are changed by the user."""
    public = read_public(str(folder), part=part)
    adapters = {
        key: build({**node, **options}, key=f"adapters.{key}")
        for key, node in public.plan().with_defaults().adapters.items()
    }
    public.prepare(adapters)
    return adapters[modality]


def words_of_bert():
    """A tokenizer of the words w0, w1, ..., with w1 before a text and w2 after it."""
    tokenizer = Tokenizer(
        models.WordLevel({f"w{i}": i for i in range(cases.VOCAB)}, unk_token="w3")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "w1 $A w2", special_tokens=[("w1", 1), ("w2", 2)]
    )
    return tokenizer


def byte_gpt2(folder, template=None, tokens=("<|endoftext|>",)):
    """A random GPT-2 with a vocabulary of bytes."""
    transformers = pytest.importorskip("transformers")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    vocabulary.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    vocabulary.decoder = decoders.ByteLevel()
    vocabulary.add_special_tokens(list(tokens))
    options = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 256}
    config = transformers.GPT2Config(vocab_size=vocabulary.get_vocab_size(), **options)
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=vocabulary, eos_token=tokens[0], chat_template=template
    )
    fast.save_pretrained(folder)
    return folder
