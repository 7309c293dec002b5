"""Public models in dxn's backbone against the libraries they come from: `python benchmarks/parity.py`.

For each family a model with random weights is built by timm or transformers, saved as its users save it, and read
by the path that dxn's users take. Both get the same input; after the embedding, after every block and at the end
the outputs are compared at the real tokens. Prints a row a family; exit code 1 where one is above its tolerance.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import timm
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from torch import Tensor, nn

from dxn.models import Model
from dxn.train.bundle import construct
from dxn.weights import Public, read_public

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
VOCAB = 101


@dataclass(frozen=True)
class Sizes:
    """How large a model and its input are."""

    dim: int = 64
    depth: int = 3
    heads: int = 2
    batch: int = 3
    side: int = 48
    length: int = 37

    @property
    def hf(self) -> dict[str, Any]:
        """As most configurations of transformers call them."""
        return {
            "hidden_size": self.dim,
            "num_hidden_layers": self.depth,
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * self.dim,
        }


@dataclass(frozen=True)
class Case:
    """A family: the peer, its blocks, what it is given and what it answers."""

    name: str
    make: Callable[[Sizes], nn.Module]
    blocks: Callable[[nn.Module], Sequence[nn.Module]]
    modality: str
    answer: Callable[[nn.Module, dict[str, Tensor]], Tensor]
    part: str | None = None
    config: dict[str, Any] | None = None  # of timm, which writes none by itself
    doubles: bool = True  # ModernBERT turns queries and keys in float32 whatever it is given


def lively(model: nn.Module) -> nn.Module:
    """Weights that no two layers share and none of them the start's ones and zeros."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=(parameter.numel() / len(parameter)) ** -0.5)
            else:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def timm_case(name: str, **options) -> Case:
    """A vision transformer of timm with such options."""

    def make(s: Sizes) -> nn.Module:
        size = {"img_size": s.side, "patch_size": 8, "embed_dim": s.dim, "depth": s.depth, "num_heads": s.heads}
        cls = options.get("cls", timm.models.vision_transformer.VisionTransformer)
        return cls(**size, num_classes=7, **{k: v for k, v in options.items() if k != "cls"})

    config = {"model_args": {"num_heads": None}, "global_pool": options.get("global_pool", "token")}
    return Case(
        name,
        make,
        lambda m: list(m.get_submodule("blocks").children()),
        "image",
        lambda m, x: m(x["pixels"]),
        config=config,
    )


def hf_case(name: str, cls: str, make: Callable[[Sizes], Any], blocks: str, modality: str, **rest) -> Case:
    """A model of transformers: the class, its configuration, and where its blocks are."""

    def build(s: Sizes) -> nn.Module:
        config = make(s)
        config._attn_implementation = "sdpa"  # the written-out way rounds its weights to float32
        return getattr(transformers, cls)(config)

    return Case(
        name,
        build,
        lambda m: list(m.get_submodule(blocks).children()),
        modality,
        rest.pop("answer", _logits(modality)),
        **rest,
    )


INPUTS = {"image": ("pixels", "pixel_values"), "audio": ("features", "input_values")}


def _logits(modality: str, pick: str = "logits") -> Callable[[nn.Module, dict[str, Tensor]], Tensor]:
    def answer(m: nn.Module, x: dict[str, Tensor]) -> Tensor:
        if modality == "text":
            out = m(input_ids=x["ids"], attention_mask=x["mask"].long())
        else:
            ours, theirs = INPUTS[modality]
            out = m(**{theirs: x[ours]})
        return getattr(out, pick)

    return answer


def _gpt2(m: nn.Module, x: dict[str, Tensor]) -> Tensor:
    hidden = m(input_ids=x["ids"], attention_mask=x["mask"].long()).last_hidden_state
    return hidden[torch.arange(len(hidden)), x["mask"].sum(1) - 1]


def _whisper(m: nn.Module, x: dict[str, Tensor]) -> Tensor:
    return m.encoder(x["features"].transpose(1, 2)).last_hidden_state.mean(1)  # pyright: ignore


def _clip_text(m: nn.Module, x: dict[str, Tensor]) -> Tensor:
    out = m.get_text_features(input_ids=x["ids"], attention_mask=x["mask"].long())  # pyright: ignore
    return out if isinstance(out, Tensor) else out.pooler_output


def _clip_image(m: nn.Module, x: dict[str, Tensor]) -> Tensor:
    out = m.get_image_features(pixel_values=x["pixels"])  # pyright: ignore
    return out if isinstance(out, Tensor) else out.pooler_output


T: Any = transformers  # whose constructors take far more than they declare
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}


def _clip(s: Sizes):
    image = {**s.hf, "image_size": s.side, "patch_size": 8, "projection_dim": 11}
    text = {**s.hf, "vocab_size": VOCAB, "projection_dim": 11, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 3}
    return T.CLIPConfig(text_config=text, vision_config=image, projection_dim=11)


CASES = (
    timm_case("ViT (timm)"),
    timm_case("ViT, no class token, mean (timm)", class_token=False, global_pool="avg"),
    timm_case(
        "ViT, registers, mean, fc norm (timm)", reg_tokens=4, no_embed_class=True, global_pool="avg", fc_norm=True
    ),
    timm_case("ViT, layer scale, qk norm, no qkv bias (timm)", init_values=0.1, qk_norm=True, qkv_bias=False),
    timm_case("DeiT, distilled (timm)", cls=timm.models.deit.VisionTransformerDistilled),
    timm_case(
        "DINOv2, SwiGLU (timm)",
        init_values=1.0,
        mlp_layer=timm.layers.mlp.SwiGLUPacked,
        act_layer=nn.SiLU,
        mlp_ratio=5.5,
    ),
    hf_case(
        "ViT (transformers)",
        "ViTForImageClassification",
        lambda s: T.ViTConfig(**s.hf, image_size=s.side, patch_size=8, num_labels=7),
        "vit.layers",
        "image",
    ),
    hf_case(
        "DeiT, distilled (transformers)",
        "DeiTForImageClassificationWithTeacher",
        lambda s: T.DeiTConfig(**s.hf, image_size=s.side, patch_size=8, num_labels=7),
        "deit.layers",
        "image",
    ),
    hf_case(
        "DINOv2",
        "Dinov2ForImageClassification",
        lambda s: T.Dinov2Config(**s.hf, image_size=s.side, patch_size=8, num_labels=7),
        "dinov2.encoder.layer",
        "image",
    ),
    hf_case(
        "DINOv2 with registers, SwiGLU",
        "Dinov2WithRegistersModel",
        lambda s: T.Dinov2WithRegistersConfig(**s.hf, image_size=s.side, patch_size=8, use_swiglu_ffn=True),
        "encoder.layer",
        "image",
        answer=_logits("image", "pooler_output"),
    ),
    hf_case(
        "BERT",
        "BertForSequenceClassification",
        lambda s: T.BertConfig(**s.hf, vocab_size=VOCAB, max_position_embeddings=64, num_labels=7),
        "bert.encoder.layer",
        "text",
    ),
    hf_case(
        "RoBERTa",
        "RobertaForSequenceClassification",
        lambda s: T.RobertaConfig(**s.hf, vocab_size=VOCAB, max_position_embeddings=66, pad_token_id=1, num_labels=7),
        "roberta.encoder.layer",
        "text",
    ),
    hf_case(
        "DistilBERT",
        "DistilBertForSequenceClassification",
        lambda s: T.DistilBertConfig(
            dim=s.dim, n_layers=s.depth, n_heads=s.heads, hidden_dim=4 * s.dim, vocab_size=VOCAB, num_labels=7
        ),
        "distilbert.transformer.layer",
        "text",
    ),
    hf_case(
        "ModernBERT",
        "ModernBertForSequenceClassification",
        lambda s: T.ModernBertConfig(
            **{**s.hf, "num_hidden_layers": s.depth + 2}, vocab_size=VOCAB, local_attention=8, num_labels=7, **SPECIAL
        ),
        "model.layers",
        "text",
        doubles=False,
    ),
    hf_case(
        "GPT-2",
        "GPT2Model",
        lambda s: T.GPT2Config(
            n_embd=s.dim,
            n_layer=s.depth,
            n_head=s.heads,
            vocab_size=VOCAB,
            n_positions=64,
            bos_token_id=1,
            eos_token_id=2,
        ),
        "h",
        "text",
        answer=_gpt2,
    ),
    hf_case(
        "AST",
        "ASTForAudioClassification",
        lambda s: T.ASTConfig(**s.hf, max_length=131, num_mel_bins=43, num_labels=7),
        "audio_spectrogram_transformer.layers",
        "audio",
    ),
    hf_case(
        "Whisper, encoder",
        "WhisperModel",
        lambda s: T.WhisperConfig(
            d_model=s.dim,
            encoder_layers=s.depth,
            decoder_layers=1,
            encoder_attention_heads=s.heads,
            decoder_attention_heads=s.heads,
            encoder_ffn_dim=4 * s.dim,
            decoder_ffn_dim=4 * s.dim,
            vocab_size=VOCAB,
            max_source_positions=61,
            num_mel_bins=23,
            decoder_start_token_id=1,
            suppress_tokens=[],
            begin_suppress_tokens=[],
            **{k: SPECIAL[k] for k in ("pad_token_id", "bos_token_id", "eos_token_id")},
        ),
        "encoder.layers",
        "audio",
        answer=_whisper,
    ),
    hf_case(
        "CLIP, image", "CLIPModel", _clip, "vision_model.encoder.layers", "image", part="image", answer=_clip_image
    ),
    hf_case("CLIP, text", "CLIPModel", _clip, "text_model.encoder.layers", "text", part="text", answer=_clip_text),
)


@dataclass
class Pair:
    """The peer, ours with its weights, and the folder they were read from."""

    case: Case
    theirs: nn.Module
    ours: Model
    public: Public


def pair(
    case: Case, folder: Path, *, sizes: Sizes | None = None, dtype: torch.dtype = torch.float64, dropout: float = 0.0
) -> Pair:
    """Build the peer, save it as its library does, read it as dxn's users do; dropout: of both, where BERT has it."""
    sizes = sizes or Sizes()
    torch.manual_seed(0)
    theirs = lively(case.make(sizes)).to(dtype)
    for module in theirs.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    save(case, theirs, folder, heads=sizes.heads)
    public = read_public(str(folder), part=case.part)
    nodes = public.nodes()
    if dropout:  # not every adapter and head takes one
        nodes["backbone"] |= {"dropout": dropout, "attn_dropout": dropout, "mlp_dropout": 0.0}
        for node in (*nodes["adapters"].values(), nodes["head"]):
            node["dropout"] = dropout
    ours = Model(
        {name: construct(node) for name, node in nodes["adapters"].items()},
        fusion=construct(nodes["fusion"]),
        backbone=construct(nodes["backbone"]),
        head=construct(nodes["head"]),
    ).to(dtype)
    public.prepare(ours.adapters)
    ours = ours.to(dtype)
    public.fill(ours)
    return Pair(case, theirs, ours.eval(), public)


def save(case: Case, model: nn.Module, folder: Path, *, heads: int) -> None:
    """As timm (a state dict and a config.json) or transformers (save_pretrained) does."""
    if case.config is not None:
        config = {**case.config, "model_args": {"num_heads": heads}}
        (folder / "config.json").write_text(json.dumps(config))
        save_file(model.state_dict(), folder / "model.safetensors")
    else:
        model.save_pretrained(folder)  # pyright: ignore
    if case.modality == "text":
        words = {f"w{i}": i for i in range(VOCAB)}
        Tokenizer(models.WordLevel(words, unk_token="w3")).save(str(folder / "tokenizer.json"))


def inputs(p: Pair, sizes: Sizes, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The same batch for our model and for the peer."""
    draw, batch = torch.Generator().manual_seed(1), sizes.batch
    adapter = p.ours.adapters[p.case.modality]
    rows = torch.arange(batch)
    if p.case.modality == "image":
        pixels = torch.randint(256, (batch, 3, sizes.side, sizes.side), generator=draw, dtype=torch.uint8)
        mean, std = (t[:, None, None] for t in (adapter.mean, adapter.std))
        given = {"pixels": pixels, "sizes": torch.full((batch, 2), sizes.side), "frame": torch.ones(batch, 4)}
        return {"image": {**given, "rows": rows}, "size": batch}, {"pixels": (pixels.to(dtype) / 255 - mean) / std}
    if p.case.modality == "text":
        lengths = torch.tensor([sizes.length, *(1 + 5 * i % sizes.length for i in range(1, batch))])
        mask = torch.arange(sizes.length) < lengths[:, None]
        ids = torch.randint(4, VOCAB, mask.shape, generator=draw)
        ids[rows, lengths - 1] = 3  # CLIP reads the token that ends a text
        pad = int(p.public.checkpoint.config.get("pad_token_id") or 0)
        ids = ids.masked_fill(~mask, pad)
        places = torch.zeros(*mask.shape, 2)
        return {"text": {"ids": ids, "mask": mask, "places": places, "rows": rows}, "size": batch}, {
            "ids": ids,
            "mask": mask,
        }
    prepare = adapter.prepare
    frames, bins = prepare.num_frames, prepare.n_mels
    features = torch.randn(batch, frames, bins, generator=draw, dtype=torch.float64).to(dtype)
    given = {"features": features, "lengths": torch.full((batch,), frames), "rows": rows}
    return {"audio": given, "size": batch}, {"features": (features - adapter.mean) / adapter.std}


def hidden_states(modules: Sequence[nn.Module], run: Callable[[], Tensor]) -> tuple[list[Tensor], Tensor]:
    """What goes into the first of modules and comes out of each, and what run returns."""
    states: list[Tensor] = []

    def first(_, args, kwargs):
        states.append(args[0] if args else kwargs["hidden_states"])

    def each(_, args, output):
        states.append(output if isinstance(output, Tensor) else output[0])

    hooks = [modules[0].register_forward_pre_hook(first, with_kwargs=True)]
    hooks += [module.register_forward_hook(each) for module in modules]
    with torch.inference_mode():
        result = run()
    for hook in hooks:
        hook.remove()
    return states, result


def differences(p: Pair, sizes: Sizes, dtype: torch.dtype) -> list[float]:
    """The largest difference after the embedding, after each block, and of the answer."""
    mine, theirs = inputs(p, sizes, dtype)
    left, answer = hidden_states(list(p.ours.backbone.blocks), lambda: p.ours(mine))
    right, expected = hidden_states(p.case.blocks(p.theirs), lambda: p.case.answer(p.theirs, theirs))
    order, mask = columns(p, left[0].shape[1]), None
    if p.case.modality == "text":
        mask = theirs["mask"]
    found = []
    for a, b in zip(left, right, strict=True):
        gap = (a[:, order] - b.reshape(a.shape)).abs()
        found.append(float((gap if mask is None else gap[mask]).max()))
    return [*found, float((answer - expected).abs().max())]


def columns(p: Pair, count: int) -> Tensor:
    """Which of our columns stands at each of the peer's: AST goes through its patches band by band."""
    if p.case.name != "AST":
        return torch.arange(count)
    bands = p.ours.adapters["audio"].bands
    grid = torch.arange(2, count).view(-1, bands).T.flatten()
    return torch.cat([torch.arange(2), grid])


def seconds(run: Callable[[], Any]) -> float:
    """Of one call."""
    start = time.perf_counter()
    with torch.inference_mode():
        run()
    return time.perf_counter() - start


def time_ratio(p: Pair, sizes: Sizes, repeats: int) -> float:
    """Median of our time over the peer's, turn by turn on the same input."""
    mine, theirs = inputs(p, sizes, torch.float32)
    ratios = []
    for i in range(repeats + 2):
        ours, other = seconds(lambda: p.ours(mine)), seconds(lambda: p.case.answer(p.theirs, theirs))
        if i > 1:
            ratios.append(ours / other)
    return statistics.median(ratios)


def main(argv: Sequence[str] | None = None) -> int:
    """A row a family."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9, help="timed turns a family")
    args = parser.parse_args(argv)
    transformers.logging.set_verbosity_error()
    print(f"{'family':<46} {'layers':>6} {'float64':>9} {'float32':>9} {'time':>6}")
    worst = 0
    for case in CASES:
        found = {}
        for dtype in (torch.float64, torch.float32) if case.doubles else (torch.float32,):
            with tempfile.TemporaryDirectory() as folder:
                p = pair(case, Path(folder), dtype=dtype)
                found[dtype] = differences(p, Sizes(), dtype)
        big = Sizes(dim=384, depth=6, heads=6, batch=8, side=128, length=60)
        with tempfile.TemporaryDirectory() as folder:
            ratio = time_ratio(pair(case, Path(folder), sizes=big, dtype=torch.float32), big, args.repeats)
        good = all(max(gaps) < TOLERANCE[dtype] for dtype, gaps in found.items())
        worst |= not good
        doubles = f"{max(found[torch.float64]):.1e}" if case.doubles else "-"
        print(
            f"{case.name:<46} {len(found[torch.float32]):>6} {doubles:>9} "
            f"{max(found[torch.float32]):>9.1e} {ratio:>6.2f}{'' if good else '  ABOVE TOLERANCE'}",
            flush=True,
        )
    return worst


if __name__ == "__main__":
    sys.exit(main())
