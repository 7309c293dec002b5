"""Read checkpoints from disk or from the Hugging Face Hub, without executing code in them."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.schema import validated
from dxn.weights.public_config import PublicConfig, read_json, shards
from dxn.weights.vocabulary import read_tokenizer

# Names of weight files in a folder, in the order of preference. Safetensors files come first,
# because a .bin file is a pickle.
WEIGHT_FILES = (
    "model.safetensors",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "model.bin",
)
TENSOR_SUFFIXES = (".safetensors", ".bin", ".pth", ".pt")
# Files to download from the hub. *.bin is added only if a repository has no safetensors file.
HUB_PATTERNS = ("*.json", "*.txt", "*.safetensors")
HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
MAX_TENSORS = 100_000  # of a file; the largest public models have a few thousand
MAX_SHARING = 4  # how often the bytes of a .pth file can occur in its tensors, such as tied weights
# Keys of a .pth file that contain the state dict, in common training scripts.
NESTED_KEYS = ("model", "state_dict", "module")


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint and its metadata files.

    Args:
        source: File, folder or hub id that the user passed.
        tensors: Tensors by name. Half precision is converted to float32.
        config: Content of config.json; empty if there is no such file.
        preprocessor: Content of preprocessor_config.json; empty if there is no such file.
        folder: Folder of the files; None for a checkpoint that exists only in memory.
        trust: Top-level packages, in addition to dxn, whose classes config.yaml may refer to.
    """

    source: str
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any] = field(default_factory=dict)
    preprocessor: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    trust: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def num_layers(self, pattern: str) -> int:
        """Return the number of layers: the distinct indices at {i} in names that match `pattern`.

        Args:
            pattern: Tensor name with the placeholder {i}, such as "blocks.{i}.norm1.weight".
        """
        index = re.compile(re.escape(pattern).replace(r"\{i\}", r"(\d+)"))
        return len({match[1] for name in self.tensors if (match := index.fullmatch(name))})

    def num_rows(self, name: str) -> int:
        """Return the size of a tensor's first dimension, or 0 if there is no such tensor."""
        return len(self.tensors[name]) if name in self.tensors else 0

    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer in the folder of the weights, or None if there is none."""
        return read_tokenizer(self.folder) if self.folder is not None else None


def read_checkpoint(
    source: str, *, revision: str | None = None, trust: tuple[str, ...] = ()
) -> Checkpoint:
    """Read a checkpoint from a file, a folder or a repository on the hub.

    Args:
        source: Path, or hub id OWNER/NAME.
        revision: Branch, tag or commit on the hub. Default: the main branch.
        trust: Top-level packages, in addition to dxn, whose classes config.yaml may refer to.

    Raises:
        UserError: If the source does not exist or cannot be read.
    """
    path = Path(source).expanduser()
    if not path.exists():
        # Do not send a misspelled path to the hub as the name of a repository.
        if HUB_ID.fullmatch(source) is None or path.suffix in TENSOR_SUFFIXES:
            raise UserError(
                f"weights: {source}: not found; pass a file, a folder or a hub id OWNER/NAME"
            )
        path = _download(source, revision)
    # A run folder of dxn contains its model in a subfolder.
    if (path / "model" / "config.yaml").exists():
        path = path / "model"
    folder = path if path.is_dir() else path.parent
    config = read_json(folder / "config.json")
    # Before the weights are read, because this is fast.
    validated(PublicConfig, config, f"weights: {folder / 'config.json'}")
    return Checkpoint(
        source=source,
        tensors={name: _to_float32(tensor) for name, tensor in _read_path(path).items()},
        config=config,
        preprocessor=_read_preprocessor(folder),
        folder=folder,
        trust=trust,
    )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors or PyTorch file, without executing code in it.

    Raises:
        UserError: If the file is missing or damaged, or contains anything but named tensors.
    """
    if not path.exists():
        raise UserError(
            f"weights: {path}: file not found, although the index of the checkpoint lists it; "
            "download the missing file"
        )
    # A named pipe or a device would block forever or never end.
    if not path.is_file():
        raise UserError(f"weights: {path}: must be a regular file; download it again")
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, "pt") as file:
                number = len(file.keys())
            # The header from an untrusted source can list empty tensors, which take minutes to
            # compare.
            if number > MAX_TENSORS:
                raise UserError(
                    f"weights: {path}: at most {MAX_TENSORS:,} tensors are read, got {number:,}"
                )
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise UserError(
                f"weights: {path}: damaged or truncated safetensors file ({error}); download it "
                "again"
            ) from error
    return _read_torch(path)


def _read_path(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, or of the preferred weight file of a folder."""
    if path.is_file():  # a file that the user passes may have any name
        return read_tensors(path)
    for name in WEIGHT_FILES:
        if (path / name).exists():
            return read_tensors(path / name)
        if (path / f"{name}.index.json").exists():
            return _read_shards(path / f"{name}.index.json")
    if (path / ".hydra").exists():  # a run folder of dxn, where Hydra saves the configuration
        raise UserError(
            f"weights: {path}: this run has not saved a model yet; wait for its first epoch, or "
            "use another run"
        )
    raise UserError(
        f"weights: {path}: no weights in this folder; it must contain one of "
        f"{', '.join(WEIGHT_FILES)}"
    )


def _read_shards(index: Path) -> dict[str, Tensor]:
    """Return the tensors of all files (shards) that an index lists."""
    tensors: dict[str, Tensor] = {}
    for shard in shards(index, read_json(index)):
        tensors |= read_tensors(index.parent / shard)
    return tensors


def _read_torch(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file that was written by torch.save."""
    _refuse_compressed(path)
    try:
        # weights_only=True does not execute code in the pickle, but raises an error.
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise almost any exception
        if isinstance(error, pickle.UnpicklingError) and "Unsupported global" in str(error):
            raise UserError(
                f"weights: {path}: contains code, not only tensors; it was not executed. "
                "Use a safetensors file instead"
            ) from error
        # Do not show the message of an UnpicklingError, because it recommends weights_only=False.
        reason = type(error).__name__ if isinstance(error, pickle.UnpicklingError) else error
        raise UserError(
            f"weights: {path}: damaged or truncated file, or not written by torch.save ({reason}); "
            "download it again"
        ) from error
    # Go through all keys, because some files are nested twice: {"model": {"state_dict": ...}}.
    for key in NESTED_KEYS:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not all(isinstance(t, Tensor) for t in state.values()):
        raise UserError(
            f"weights: {path}: must contain a state dict (tensors by name), and nothing else; save "
            "model.state_dict()"
        )
    # A tensor can repeat a few bytes any number of times, and copying it would fill the memory.
    # Tied weights are stored once, so the sum can be larger than the file.
    size = sum(tensor.nbytes for tensor in state.values() if tensor.layout == torch.strided)
    limit = MAX_SHARING * path.stat().st_size
    if size > limit or any(tensor.layout != torch.strided for tensor in state.values()):
        raise UserError(
            f"weights: {path}: must contain dense tensors of at most {limit:,} bytes, "
            f"{MAX_SHARING} times the size of the file, got {size:,} bytes; use a safetensors file"
        )
    return {str(name): tensor for name, tensor in state.items()}


def _refuse_compressed(path: Path) -> None:
    """Refuse a file with compressed data, which torch.save never writes.

    Raises:
        UserError: If the file is a zip archive whose content is larger than the file.
    """
    if not zipfile.is_zipfile(path):
        return  # the format of torch before version 1.6
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
        raise UserError(
            f"weights: {path}: damaged or truncated file ({error}); download it again"
        ) from error
    if size > path.stat().st_size:
        raise UserError(
            f"weights: {path}: must not be compressed, got {size:,} bytes in a file of "
            f"{path.stat().st_size:,}; use a safetensors file"
        )


def refuse_non_finite(name: str, tensor: Tensor, source: str | Path) -> None:
    """Raise a UserError if a tensor contains NaN or infinity.

    Args:
        name: Name of the tensor.
        tensor: The tensor.
        source: The file or checkpoint, for the message.

    Raises:
        UserError: If a value is not finite.
    """
    is_number = tensor.is_floating_point() or tensor.is_complex()
    if not is_number or tensor.is_meta:  # a meta tensor has no values
        return
    count = int(tensor.numel() - tensor.isfinite().sum())
    if count:
        raise UserError(
            f"weights: {source}: {name} has {count:,} values that are NaN or infinite, of "
            f"{tensor.numel():,}; use another checkpoint"
        )


def _to_float32(tensor: Tensor) -> Tensor:
    # The optimizer needs float32 weights. Autocast runs the model in half precision where possible.
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _download(name: str, revision: str | None) -> Path:
    """Return the local copy of a repository on the hub, and download it if it is not cached."""
    # The library is slow to import, and most runs do not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    patterns: list[str] = [*HUB_PATTERNS]
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
        # Many repositories contain the same weights as safetensors and as a pickle, so download the
        # pickle only if there is no safetensors file.
        if not any(folder.glob("*.safetensors")):
            patterns.append("*.bin")
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except RevisionNotFoundError as error:
        raise UserError(
            f"weights: {name}: the hub has no revision {revision!r} of this repository; check "
            "weights.revision"
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"weights: {name}: neither a local file or folder nor a public repository on the hub; "
            "check the spelling"
        ) from error
    # The type of connection errors depends on the HTTP library of huggingface_hub.
    except Exception as error:
        raise UserError(
            f"weights: {name}: the hub cannot be reached, and the model is not in the local cache; "
            "check the network connection, or download the model first"
        ) from error
    return folder


def _read_preprocessor(folder: Path) -> dict[str, Any]:
    """Return the content of preprocessor_config.json, or the same settings in another file.

    For a model with several modalities, transformers writes them to processor_config.json.
    """
    processor = read_json(folder / "processor_config.json")
    nested = processor.get("image_processor") or processor.get("feature_extractor") or {}
    return read_json(folder / "preprocessor_config.json") or nested
