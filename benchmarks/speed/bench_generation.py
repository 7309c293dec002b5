"""Rows of bench.py: generation. Both sides hold their weights in the same data type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from bench_row import OURS, Goal, Options, Row, Unequal, Work
from parity import build_model
from tokenizers import Tokenizer, models
from torch import Tensor, nn

from dxn.models import (
    LanguageModel,
    Memory,
    MultimodalModel,
    generate,
)
from dxn.models.inference import convert
from dxn.weights import read_public

T: Any = transformers
PROMPT, NEW, BATCH = 16, 128, 8
LLAMA = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
# Tokens that are compared in float32 before the measurement.
COMPARED = 8

# An encoder-decoder of 2.6 million parameters.
DIM, DEPTH, HEADS, VOCAB = 128, 3, 4, 9400
SENTENCES, SENTENCES_PER_BATCH, BEAMS, WRITTEN = 1000, 100, 4, 20
BEGIN, END = 0, 1


def gpt2(options: Options) -> Work:
    """GPT-2 small of dxn and of transformers: 128 new tokens for 8 prompts of 16."""
    return _continuation(lambda: T.GPT2LMHeadModel(T.GPT2Config()), BATCH, options)


def llama(options: Options) -> Work:
    """A Llama of the size of SmolLM2-135M: 128 new tokens for a prompt of 16."""
    config = T.LlamaConfig(**LLAMA)
    return _continuation(lambda: T.LlamaForCausalLM(config), 1, options)


def _continuation(make_peer: Callable[[], Any], size: int, options: Options) -> Work:
    """Continue prompts greedily, in dxn and in transformers."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    peer = make_peer().eval()
    model = _model_of_dxn(peer, options.folder)
    rand = torch.Generator().manual_seed(1)
    prompt = torch.randint(peer.config.vocab_size, (size, PROMPT), generator=rand)
    expected = _continued(peer, prompt, COMPARED)
    found = generate(LanguageModel(model), None, prompt=prompt, end=None, max_new=COMPARED)
    _check_ids([hypothesis.ids for hypothesis in found], expected)
    device, dtype = options.device, options.dtype
    model, peer, prompt = model.to(device), peer.to(device, dtype), prompt.to(device)
    convert(model, dtype)
    language = LanguageModel(model)

    def ours() -> None:
        generate(language, None, prompt=prompt, end=None, max_new=NEW)

    def theirs() -> None:
        _continued(peer, prompt, NEW)

    # Two operations per weight and token: every block, and the logits of the new tokens.
    blocks = sum(p.numel() for p in model.backbone.parameters())
    logits = language.adapter.embedding.weight.numel()
    flop = 2 * size * (blocks * (PROMPT + NEW - 1) + logits * NEW)
    return Work({OURS: ours, "transformers": theirs}, flop)


def translation(options: Options) -> Work:
    """Beam search of an encoder-decoder, in dxn and in transformers (Marian)."""
    torch.manual_seed(0)
    peer: Any = T.MarianMTModel(_marian_config()).eval()
    with torch.no_grad():
        # Larger weights than the initial ones, so that the sentences differ.
        for parameter in peer.parameters():
            if parameter.ndim > 1 and parameter.requires_grad:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    model = _model_of_dxn(peer, options.folder)
    rand = torch.Generator().manual_seed(1)
    lengths = torch.randint(6, 31, (SENTENCES,), generator=rand).sort().values
    sentences = [torch.randint(2, VOCAB, (int(n),), generator=rand) for n in lengths]
    batches = [
        nn.utils.rnn.pad_sequence(sentences[i : i + SENTENCES_PER_BATCH], True, BEGIN)
        for i in range(0, SENTENCES, SENTENCES_PER_BATCH)
    ]
    first = batches[0][:8]
    _check_ids(_translated_by_dxn(model, first), _translated(peer, first))
    device, dtype = options.device, options.dtype
    peer = peer.to(device, dtype)
    convert(model.to(device), dtype)
    batches = [batch.to(device) for batch in batches]

    def translate() -> None:
        for batch in batches:
            _translated_by_dxn(model, batch)

    def translate_peer() -> None:
        for batch in batches:
            _translated(peer, batch)

    return Work({OURS: translate, "transformers": translate_peer})


@torch.inference_mode()
def _translated_by_dxn(model: MultimodalModel, ids: Tensor) -> list[list[int]]:
    """Translate sentences (B, N) by beam search."""
    text = {
        "ids": ids,
        "mask": ids != BEGIN,
        "coords": torch.zeros(*ids.shape, 2, device=ids.device),
        "rows": torch.arange(len(ids), device=ids.device),
    }
    tokens, _ = model.encode(model.embed({"text": text, "#size": len(ids)}))
    memory = Memory.from_tokens(tokens)
    found = model.head.write(memory, begin=BEGIN, end=END, max_new=WRITTEN, beams=BEAMS)
    return [hypothesis.ids for hypothesis in found]


def _tokenizer(size: int) -> Tokenizer:
    """Return a tokenizer whose tokens are the numbers below `size`."""
    vocabulary = {str(i): i for i in range(size)}
    return Tokenizer(models.WordLevel(vocabulary, unk_token="0"))


def _model_of_dxn(peer: Any, folder: Path) -> MultimodalModel:
    """Build the model in dxn with the weights of transformers."""
    peer.save_pretrained(folder)
    _tokenizer(peer.config.vocab_size).save(str(folder / "tokenizer.json"))
    public = read_public(str(folder))
    model = build_model(public)
    public.fill(model)
    return model.eval()


@torch.inference_mode()
def _continued(peer: Any, prompt: Tensor, count: int) -> list[list[int]]:
    """Return the greedy continuations of a model of transformers."""
    ids = peer.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=count,
        min_new_tokens=count,
        pad_token_id=0,
    )
    return ids[:, prompt.shape[1] :].tolist()


@torch.inference_mode()
def _translated(peer: Any, ids: Tensor) -> list[list[int]]:
    """Return the translations of a Marian model, without the end token."""
    found = peer.generate(
        input_ids=ids,
        attention_mask=(ids != BEGIN).long(),
        num_beams=BEAMS,
        max_new_tokens=WRITTEN,
        do_sample=False,
        length_penalty=0.0,
    )
    texts = found[:, 1:].tolist()
    return [text[: text.index(END)] if END in text else text for text in texts]


def _marian_config() -> Any:
    return T.MarianConfig(
        vocab_size=VOCAB,
        d_model=DIM,
        encoder_layers=DEPTH,
        decoder_layers=DEPTH,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=4 * DIM,
        decoder_ffn_dim=4 * DIM,
        max_position_embeddings=64,
        activation_function="gelu",
        scale_embedding=True,
        pad_token_id=BEGIN,
        decoder_start_token_id=BEGIN,
        eos_token_id=END,
        bos_token_id=BEGIN,
        forced_eos_token_id=None,
    )


def _check_ids(ours: list[list[int]], theirs: list[list[int]]) -> None:
    """Check that both sides generate the same tokens."""
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
    if equal < len(ours):
        raise Unequal(f"only {equal} of {len(ours)} generated sequences are equal")


ROWS: tuple[Row, ...] = (
    Row(
        "gpt2_generation",
        f"GPT-2 small, {BATCH} prompts, {PROMPT} + {NEW} tokens",
        "generation",
        gpt2,
        (Goal(at_least=1.3),),
        rounds=5,
    ),
    Row(
        "llama_generation",
        f"Llama of 135 M parameters, 1 prompt, {PROMPT} + {NEW} tokens",
        "generation",
        llama,
        (Goal(at_least=1.5),),
        rounds=5,
    ),
    Row(
        "beam_search",
        f"{BEAMS} beams, encoder-decoder of 2.6 M parameters, {SENTENCES:,} sentences of 6 to 30 "
        f"tokens, {WRITTEN} new tokens",
        "generation",
        translation,
        (Goal(at_least=2),),
        rounds=5,
    ),
)
