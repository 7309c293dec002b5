"""AST, the audio spectrogram transformer (arXiv:2104.01778)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from einops import rearrange
from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.family import Family, Parts, Table, Take, both, layers, patches, same

MEAN, STD = -4.2677393, 4.5689974  # of AudioSet, which the processor halves the spread of


def knows(found: Checkpoint) -> bool:
    return hf.model_type(found) == "audio-spectrogram-transformer"


def parts(found: Checkpoint) -> Parts:
    c, p, wave = found.config, base(found), found.preprocessor
    dim, _, patch, _ = found.tensors[f"{p}embeddings.patch_embeddings.projection.weight"].shape
    classes = len(found.tensors["classifier.dense.weight"]) if "classifier.dense.weight" in found else 0
    normal = wave.get("do_normalize", True)
    rate = wave.get("sampling_rate", 16000)
    return Parts(
        dim=dim,
        adapters={
            "audio": {
                "tokens": "patches",
                "frontend": "kaldi",
                "sample_rate": rate,
                "n_fft": rate // 40,
                "hop_length": rate // 100,
                "n_mels": c["num_mel_bins"],
                "num_frames": c["max_length"],
                "patch_size": patch,
                "stride": [c["frequency_stride"], c["time_stride"]],
                "pad_end": False,
                "normalize": "dataset",
                "mean": wave.get("mean", MEAN) if normal else 0.0,
                "std": 2 * wave.get("std", STD) if normal else 1.0,
                "position": "learned",
                "max_len": grid_of(found)[1],
            }
        },
        backbone={
            "depth": c["num_hidden_layers"],
            "num_heads": c["num_attention_heads"],
            "mlp_ratio": c["intermediate_size"] / dim,
            "mlp": hf.mlp(found, c),
            "norm_eps": c["layer_norm_eps"],
        },
        fusion={"pool": "leading", "registers": 1},
        head={"norm": True, "norm_eps": c["layer_norm_eps"]} if classes else {},
        labels=hf.labels(found, classes) if classes else None,
    )


def table(found: Checkpoint, parts: Parts) -> Table:
    p, audio, (bands, steps) = base(found), parts.adapters["audio"], grid_of(found)
    places = f"{p}embeddings.position_embeddings"
    leading = (f"{p}embeddings.cls_token", f"{p}embeddings.distillation_token")
    size = audio["patch_size"]
    return {
        "adapters.audio.proj.weight": patches(
            f"{p}embeddings.patch_embeddings.projection.weight", channels=1, height=size, width=size
        ),
        "adapters.audio.proj.bias": same(f"{p}embeddings.patch_embeddings.projection.bias"),
        # Theirs go band by band through time, ours moment by moment through the bands.
        "adapters.audio.position.table": Take(
            (places,), lambda t: rearrange(t[0, 2:], "(f t) d -> t f d", f=bands, t=steps)
        ),
        "fusion.pool.tokens": Take((*leading, places), lambda a, b, t: torch.cat([a[0], b[0]]) + t[0, :2]),
        **layers(
            hf.VIT_BLOCK,
            ours="backbone.blocks.{i}",
            theirs=p + "encoder.layer.{i}",
            depth=parts.backbone["depth"],
        ),
        **both(
            {
                "backbone.norm": f"{p}layernorm",
                "head.neck.norm": "classifier.layernorm",
                "head.out": "classifier.dense",
            }
        ),
    }


def back(ours: Mapping[str, Tensor], found: Checkpoint, parts: Parts) -> dict[str, Tensor]:
    """Leading tokens and places, added to each other as they are here."""
    p, tokens = base(found), ours["fusion.pool.tokens"]
    places = rearrange(ours["adapters.audio.position.table"], "t f d -> (f t) d")
    return {
        f"{p}embeddings.cls_token": tokens[None, :1],
        f"{p}embeddings.distillation_token": tokens[None, 1:],
        f"{p}embeddings.position_embeddings": torch.cat([torch.zeros_like(tokens), places])[None],
    }


def grid_of(found: Checkpoint) -> tuple[int, int]:
    """Patches along the mel axis and along time."""
    c = found.config
    patch = c["patch_size"]
    bands = (c["num_mel_bins"] - patch) // c["frequency_stride"] + 1
    return bands, (c["max_length"] - patch) // c["time_stride"] + 1


def base(found: Checkpoint) -> str:
    """The bare model's prefix, where there is a head."""
    return hf.prefix(found, "audio_spectrogram_transformer", "embeddings.cls_token")


AST = Family("AST", knows, parts, table, no_bias=("query.bias", "key.bias", "value.bias"), back=back)
