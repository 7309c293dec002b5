"""Rows of bench.py: generation. Both sides hold their weights in the same data type."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from bench_row import OURS, Call, Goal, Options, Row, Unequal, Work
from parity import build_model
from tokenizers import Tokenizer, models
from torch import Tensor, nn

from dxn.models import (
    Backbone,
    LanguageModel,
    Memory,
    MultimodalModel,
    generate,
)
from dxn.models.inference import convert
from dxn.weights import read_public

T: Any = transformers
PROMPT, NEW, BATCH = 16, 128, 8
LONG_PROMPT = 512
SOURCE = 64  # tokens of a text that T5 rewrites
FRAMES, BINS = 3000, 80  # of the spectrogram of 30 seconds
ENGLISH, NO_TIMES = 51_864, 50_362  # vocabulary of the English Whisper, and a token before a text
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
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 101} if options.tiny else {}
    return _continuation(T.GPT2LMHeadModel, T.GPT2Config(**sizes), options, size=BATCH)


def llama(options: Options) -> Work:
    """A Llama of the size of SmolLM2-135M: 128 new tokens for a prompt of 16."""
    return _continuation(T.LlamaForCausalLM, T.LlamaConfig(**LLAMA), options)


def llama_prompt(options: Options) -> Work:
    """The first token that this Llama writes after a prompt of 512 tokens."""
    config = T.LlamaConfig(**LLAMA)
    return _continuation(T.LlamaForCausalLM, config, options, length=LONG_PROMPT, writes=False)


def _continuation(
    make_peer: Callable[[Any], Any],
    config: Any,
    options: Options,
    *,
    size: int = 1,
    length: int = PROMPT,
    writes: bool = True,
) -> Work:
    """Continue prompts of this length greedily, in dxn and in transformers.

    Without `writes`, only the first new token is computed.
    """
    peer = _peer(make_peer, config)
    model = _model_of_dxn(peer, options.folder)
    rand = torch.Generator().manual_seed(1)
    prompt = torch.randint(config.vocab_size, (size, length), generator=rand)
    expected = _continued(peer, prompt, COMPARED)
    found = generate(LanguageModel(model), None, prompt=prompt, end=None, max_new=COMPARED)
    _check_ids([hypothesis.ids for hypothesis in found], expected)
    device, dtype = options.device, options.dtype
    model, peer, prompt = model.to(device), peer.to(device, dtype), prompt.to(device)
    _optimize(model, dtype)
    language = LanguageModel(model)

    def ours() -> None:
        generate(language, None, prompt=prompt, end=None, max_new=NEW if writes else 1)

    def theirs(**mode: str) -> None:
        _continued(peer, prompt, NEW if writes else 1, **mode)

    # Two operations per weight and token: every block, and the logits of the new tokens.
    blocks = sum(p.numel() for p in model.backbone.parameters())
    logits = language.adapter.embedding.weight.numel()
    new = NEW if writes else 1
    flop = 2 * size * (blocks * (length + new - 1) + logits * new)
    calls: dict[str, Call] = {OURS: ours, "transformers": theirs}
    if device.type == "cuda":
        # With a cache of a fixed size, transformers compiles its steps by itself.
        calls["transformers, compiled"] = lambda: theirs(cache_implementation="static")
    return Work(calls, flop)


def t5(options: Options, *, size: int) -> Work:
    """T5-small: 128 new tokens for each of `size` texts of 64 tokens."""
    ids = torch.randint(2, T.T5Config().vocab_size, (size, SOURCE))
    peer = _peer(T.T5ForConditionalGeneration, T.T5Config(decoder_start_token_id=BEGIN))
    theirs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return _answers(peer, {"text": _text(ids)}, theirs, (BEGIN,), options)


def whisper(options: Options, *, size: int) -> Work:
    """Whisper-tiny for English: 128 tokens for each of `size` sounds of 30 seconds."""
    config = T.WhisperConfig(vocab_size=ENGLISH, begin_suppress_tokens=None)
    peer = _peer(T.WhisperForConditionalGeneration, config)
    peer.generation_config.is_multilingual = False
    peer.generation_config.no_timestamps_token_id = NO_TIMES
    features = torch.randn(size, FRAMES, BINS)
    audio = {
        "features": features,
        "lengths": torch.full((size,), FRAMES),
        "rows": torch.arange(size),
    }
    begin = config.decoder_start_token_id, NO_TIMES
    return _answers(peer, {"audio": audio}, {"input_features": features.mT}, begin, options)


def _answers(
    peer: Any,
    ours: dict[str, dict[str, Tensor]],
    theirs: dict[str, Tensor],
    begin: tuple[int, ...],
    options: Options,
) -> Work:
    """Write a text for each input greedily, in dxn and in transformers.

    Args:
        peer: Encoder-decoder of transformers.
        ours: Batch of the input of dxn, by the name of the input.
        theirs: Inputs of the peer.
        begin: Ids of the tokens before each text.
        options: Options of the measurement.
    """
    model = _model_of_dxn(peer, options.folder)
    device, dtype = options.device, options.dtype

    @torch.inference_mode()
    def write(count: int) -> list[list[int]]:
        size = len(next(iter(theirs.values())))
        tokens, _ = model.encode(model.embed({**ours, "#size": size}))
        memory = Memory.from_tokens(tokens)
        found = model.head.write(memory, begin=begin, end=(), max_new=count)
        return [hypothesis.ids for hypothesis in found]

    @torch.inference_mode()
    def write_peer(count: int) -> list[list[int]]:
        lengths = {"min_new_tokens": count, "max_new_tokens": count}
        return peer.generate(**theirs, **lengths, do_sample=False)[:, -count:].tolist()

    _check_ids(write(COMPARED), write_peer(COMPARED))
    ours = {name: {k: v.to(device) for k, v in part.items()} for name, part in ours.items()}
    theirs = {name: part.to(device) for name, part in theirs.items()}
    theirs = {n: part.to(dtype) if part.is_floating_point() else part for n, part in theirs.items()}
    peer = peer.to(device, dtype)
    _optimize(model.to(device), dtype)

    def call() -> None:
        write(NEW)

    def call_peer() -> None:
        write_peer(NEW)

    return Work({OURS: call, "transformers": call_peer})


def translation(options: Options) -> Work:
    """Beam search of an encoder-decoder, in dxn and in transformers (Marian)."""
    peer = _peer(T.MarianMTModel, _marian_config())
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
    _optimize(model.to(device), dtype)
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
    tokens, _ = model.encode(model.embed({"text": _text(ids), "#size": len(ids)}))
    memory = Memory.from_tokens(tokens)
    found = model.head.write(memory, begin=BEGIN, end=END, max_new=WRITTEN, beams=BEAMS)
    return [hypothesis.ids for hypothesis in found]


def _text(ids: Tensor) -> dict[str, Tensor]:
    """Return the batch of texts (B, N)."""
    return {
        "ids": ids,
        "mask": ids != BEGIN,
        "coords": torch.zeros(*ids.shape, 2, device=ids.device),
        "rows": torch.arange(len(ids), device=ids.device),
    }


def _peer(make: Callable[[Any], Any], config: Any) -> Any:
    """Return a model of transformers with random weights."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    return make(config).eval()


def _tokenizer(size: int) -> Tokenizer:
    """Return a tokenizer whose tokens are the numbers below `size`."""
    vocabulary = {("<|notimestamps|>" if i == NO_TIMES else str(i)): i for i in range(size)}
    return Tokenizer(models.WordLevel(vocabulary, unk_token="0"))


def _model_of_dxn(peer: Any, folder: Path) -> MultimodalModel:
    """Build the model in dxn with the weights of transformers."""
    peer.save_pretrained(folder)
    _tokenizer(peer.config.vocab_size).save(str(folder / "tokenizer.json"))
    public = read_public(str(folder))
    model = build_model(public)
    public.fill(model)
    return model.eval()


def _optimize(model: MultimodalModel, dtype: torch.dtype) -> None:
    """Convert the model as `Predictor` does."""
    convert(model, dtype)
    for module in model.modules():
        if isinstance(module, Backbone):
            module.prepare()


@torch.inference_mode()
def _continued(peer: Any, prompt: Tensor, count: int, **mode: str) -> list[list[int]]:
    """Return the greedy continuations of a model of transformers."""
    ids = peer.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=count,
        min_new_tokens=count,
        pad_token_id=0,
        **mode,
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
        "llama_prompt",
        f"the same, 1 prompt of {LONG_PROMPT} tokens, and the first new token",
        "generation",
        llama_prompt,
        (Goal(at_least=1.3),),
        rounds=5,
    ),
    *(
        Row(
            f"t5_generation_batch{size}",
            f"T5-small, batch size {size}, {SOURCE} + {NEW} tokens",
            "generation",
            partial(t5, size=size),
            (Goal(at_least=1.3),),
            rounds=5,
        )
        for size in (1, BATCH)
    ),
    *(
        Row(
            f"whisper_generation_batch{size}",
            f"Whisper-tiny, batch size {size}, sounds of 30 s, {NEW} new tokens",
            "generation",
            partial(whisper, size=size),
            (Goal(at_least=1.3),),
            rounds=5,
        )
        for size in (1, BATCH)
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
