"""A public checkpoint as it lies on disk or on the hub. Nothing in it is run."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from dxn.errors import UserError
from dxn.tokenize.text import load_tokenizer

WEIGHTS = ("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "model.bin")
WANTED = ("*.json", "*.txt", "*.safetensors")  # from the hub; *.bin only where there is no safetensors file
HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
NESTED = ("model", "state_dict", "module")  # under which some put the weights in a .pth


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by their names, and what lies beside them.

    Half precision is made float32. config is config.json, preprocessor preprocessor_config.json; {} without them.
    """

    source: str
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any] = field(default_factory=dict)
    preprocessor: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def count(self, pattern: str) -> int:
        """How many numbers stand at {i} in the names of tensors: layers."""
        number = re.compile(re.escape(pattern).replace(r"\{i\}", r"(\d+)"))
        return len({m[1] for name in self.tensors if (m := number.fullmatch(name))})

    def tokenizer(self) -> Tokenizer | None:
        """Of tokenizer.json, or of the vocabulary files of WordPiece and byte-level BPE; None without any."""
        if self.folder is None:
            return None
        if (self.folder / "tokenizer.json").exists():
            return load_tokenizer(self.folder / "tokenizer.json")
        settings = _json(self.folder / "tokenizer_config.json")
        if (self.folder / "vocab.txt").exists():
            lowercase, strip = settings.get("do_lower_case", True), settings.get("strip_accents")
            return wordpiece(self.folder / "vocab.txt", lowercase=lowercase, strip_accents=strip)
        if (self.folder / "vocab.json").exists() and (self.folder / "merges.txt").exists():
            return byte_bpe(self.folder / "vocab.json", self.folder / "merges.txt")
        return None


def read_checkpoint(source: str, *, revision: str | None = None) -> Checkpoint:
    """A file, a folder, or a hub id; UserError where it is none of them or cannot be read."""
    path = Path(source).expanduser()
    if not path.exists():
        if HUB_ID.fullmatch(source) is None or path.suffix in (".safetensors", ".bin", ".pth", ".pt"):
            raise UserError(f"weights: {source}: no such file or folder; a hub id is OWNER/NAME")
        path = _download(source, revision)
    if (path / "model" / "config.yaml").exists():  # a run folder of our own
        path = path / "model"
    folder = path if path.is_dir() else path.parent
    tensors = _tensors_of(path)
    return Checkpoint(
        source=source,
        tensors={name: t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for name, t in tensors.items()},
        config=_json(folder / "config.json"),
        preprocessor=_preprocessor(folder),
        folder=folder,
    )


def _tensors_of(path: Path) -> dict[str, Tensor]:
    if path.is_file():
        return read_tensors(path)
    for name in WEIGHTS:
        if (path / name).exists():
            return read_tensors(path / name)
        if (path / f"{name}.index.json").exists():
            listed = _json(path / f"{name}.index.json").get("weight_map")
            if not isinstance(listed, dict):
                raise UserError(f"weights: {path / name}.index.json: it has no weight_map")
            parts = sorted(set(listed.values()))
            return {k: t for part in parts for k, t in read_tensors(path / part).items()}
    if (path / ".hydra").exists():
        raise UserError(f"weights: {path}: this run has kept no model yet")
    raise UserError(f"weights: {path}: none of {', '.join(WEIGHTS)} is in this folder")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file or torch state dict, which is read without running anything in it."""
    if not path.exists():
        raise UserError(f"weights: {path}: no such file, though the index lists it")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise UserError(f"weights: {path}: damaged or truncated safetensors file ({error})") from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises nearly anything
        if isinstance(error, pickle.UnpicklingError) and "Unsupported global" in str(error):
            raise UserError(
                f"weights: {path}: holds code, not only tensors; it was not run. Ask for a safetensors file"
            ) from error
        reason = type(error).__name__ if isinstance(error, pickle.UnpicklingError) else error
        raise UserError(f"weights: {path}: damaged or truncated torch file, or none at all ({reason})") from error
    for name in NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping) or not all(isinstance(t, Tensor) for t in found.values()):
        raise UserError(f"weights: {path}: must hold tensors by name, a state dict, and nothing else")
    return {str(name): t for name, t in found.items()}


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download  # most runs never go to the hub
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=list(WANTED)))
        if not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=[*WANTED, "*.bin"]))
    except RevisionNotFoundError as error:
        raise UserError(f"weights: {name}: the hub has no revision {revision} of it") from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"weights: {name}: neither a file or folder here nor a repository on the hub that can be read"
        ) from error
    except Exception as error:  # of whichever library the hub's client uses for the network
        raise UserError(f"weights: {name}: the hub cannot be reached, and it is not in the local cache") from error
    return folder


def _preprocessor(folder: Path) -> dict[str, Any]:
    """Of its own file, or of the one that transformers writes for a model of more than one modality."""
    both = _json(folder / "processor_config.json")
    nested = both.get("image_processor") or both.get("feature_extractor") or {}
    return _json(folder / "preprocessor_config.json") or nested


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"weights: {path}: not JSON ({error})") from error
    return found if isinstance(found, dict) else {}


def wordpiece(vocab: Path, *, lowercase: bool, strip_accents: bool | None = None) -> Tokenizer:
    """BERT's tokenizer from its vocab.txt, a piece a line."""
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    # Not splitlines, which also splits at letters like U+2028 that a vocabulary may hold.
    lines = vocab.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    pieces = {piece: i for i, piece in enumerate(lines)}
    missing = [name for name in ("[UNK]", "[CLS]", "[SEP]") if name not in pieces]
    if missing:
        raise UserError(f"weights: {vocab}: {', '.join(missing)} not among its {len(lines)} pieces")
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([t for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if t in pieces])
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", pieces["[SEP]"]), ("[CLS]", pieces["[CLS]"]))
    return tokenizer


def byte_bpe(vocab: Path, merges: Path) -> Tokenizer:
    """GPT-2's tokenizer from vocab.json and merges.txt; RoBERTa's, which puts <s> and </s> around a text."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    pieces = tokenizer.get_vocab()
    if "<|startoftext|>" in pieces:
        raise UserError(f"weights: {vocab}: CLIP's vocabulary, which only a tokenizer.json says how to use")
    tokenizer.add_special_tokens([t for t in ("<s>", "<pad>", "</s>", "<unk>", "<|endoftext|>") if t in pieces])
    if "<mask>" in pieces:
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    if "<s>" in pieces and "</s>" in pieces:
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", pieces["</s>"]), ("<s>", pieces["<s>"]), add_prefix_space=False
        )
    return tokenizer
