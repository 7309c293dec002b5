"""Files of tensors (safetensors), and checks of the tensors of an untrusted file."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from dxn.core.errors import UserError
from dxn.core.files import atomic_file

MAX_TENSORS = 100_000  # of a file; the largest public models have a few thousand
MAX_SHARING = 4  # how often the bytes of a .pth file can occur in its tensors, such as tied weights
# Bytes of a file that are read before it is opened again, see `TensorFiles`.
MAX_MAPPED = 2**24
# Size of a parameter from which on `without_values` does not create it. A checkpoint may lack some
# small ones, such as the embedding of masked patches.
MIN_META = 2**20
HALVES = (torch.float16, torch.bfloat16)
# Keys of a .pth file that contain the state dict, in common training scripts.
NESTED_KEYS = ("model", "state_dict", "module")


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file atomically.

    Raises:
        UserError: If there is no space left.
    """
    contiguous: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        # safetensors stores only contiguous tensors; weights in channels_last format are not.
        contiguous[name] = tensor.contiguous()
        # It refuses tensors that share memory, such as the weights of a module that occurs twice.
        storage = contiguous[name].untyped_storage().data_ptr()
        if storage in storages:
            contiguous[name] = contiguous[name].clone()
        storages.add(storage)
    with atomic_file(path) as partial:
        # safetensors creates files that only the owner can read. An ordinary new file has the
        # permissions that the user chose (umask), so that a container can read it, for example.
        partial.touch()
        mode = partial.stat().st_mode
        save_file(contiguous, partial, metadata)
        partial.chmod(mode)


class TensorFiles(Mapping[str, Tensor]):
    """The tensors of one or several files, each of which is read when it is needed.

    A tensor is a view of the mapped file, so its shape and dtype are known without reading it. What
    has been read of a mapped file counts as memory of the process. Therefore the file is opened
    again after MAX_MAPPED bytes, and the memory is free when no tensor refers to it any more. Copy
    what you need from a tensor, and do not keep it.

    Args:
        paths: The files. If several have a tensor of the same name, the last one is used.

    Raises:
        UserError: See `read_tensors`.
    """

    def __init__(self, paths: Sequence[Path]):
        self._paths: dict[str, Path] = {}
        self._path: Path | None = None
        self._opened: dict[str, Tensor] = {}
        self._num_bytes = 0
        for path in paths:
            self._open(path)
            self._paths |= dict.fromkeys(self._opened, path)

    def __getitem__(self, name: str) -> Tensor:
        path = self._paths[name]
        if path != self._path or self._num_bytes > MAX_MAPPED:
            self._open(path)
        tensor = self._opened[name]
        # A file in the old format of torch was read as a whole, and not mapped.
        if self._is_mapped:
            self._num_bytes += tensor.nbytes
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def _open(self, path: Path) -> None:
        self._opened = {}  # before the next file is opened
        self._opened = read_tensors(path)
        self._path = path
        self._num_bytes = 0
        self._is_mapped = path.suffix == ".safetensors" or zipfile.is_zipfile(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors or PyTorch file, without executing code in it.

    They are views of the mapped file, except those of a file in the format of torch before 1.6.

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


def _read_torch(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file that was written by torch.save."""
    _refuse_compressed(path)
    try:
        # weights_only=True does not execute code in the pickle, but raises an error.
        is_zip = zipfile.is_zipfile(path)  # only such a file can be mapped
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
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


@contextmanager
def without_values() -> Iterator[None]:
    """Create large parameters without values (device meta), which takes no memory and no time.

    `set_tensor` sets their values. Small parameters and all buffers have values, because a file may
    lack some of them.
    """

    def to_meta(module: nn.Module, name: str, tensor: Tensor | None) -> Tensor | None:
        if not isinstance(tensor, nn.Parameter) or tensor.is_meta or tensor.nbytes < MIN_META:
            return None
        # Until the module initializes its parameter, which is now this one, it uses no memory.
        return nn.Parameter(tensor.detach().to("meta"), requires_grad=tensor.requires_grad)

    hook: Any = to_meta  # torch declares no result, although it uses it
    handle = register_module_parameter_registration_hook(hook)
    try:
        with _SkipInitialization():
            yield
    finally:
        handle.remove()


class _SkipInitialization(TorchFunctionMode):
    """Skips operations in place, such as normal_, of tensors without values.

    The first one would import torch's functions for the device "meta", which takes seconds and 80
    MB.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Compute an operation, unless its result is a tensor without values that it changes."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.startswith(("_", "requires_grad")):
            target = args[0] if args else kwargs.get("tensor")  # torch.nn.init passes its name
            if isinstance(target, Tensor) and target.is_meta:
                return target
        return func(*args, **kwargs)


def set_tensor(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Copy a tensor into a parameter or buffer, which keeps its dtype.

    A parameter without values (device meta) becomes a new one. Call it without gradients.

    Args:
        module: The module.
        name: Name of the parameter or buffer, as in the state dict.
        tensor: Tensor of the same shape.
    """
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    target = getattr(owner, leaf)
    if not target.is_meta or tensor.is_meta:
        target.copy_(tensor)
        return
    values = torch.empty(target.shape, dtype=target.dtype).copy_(tensor)
    # Not setattr, which would call the hook of `without_values`.
    owner._parameters[leaf] = nn.Parameter(values, requires_grad=target.requires_grad)


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


def nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor with a NaN or an infinite number, if there is one."""
    for name, tensor in tensors.items():
        is_number = tensor.is_floating_point() or tensor.is_complex()
        # A meta tensor has no values.
        if not is_number or tensor.is_meta or not tensor.numel():
            continue
        if tensor.dtype in HALVES or tensor.dtype in (torch.float32, torch.float64):
            # It needs no memory, and its results are NaN if there is one.
            tensor = torch.stack(tensor.aminmax())
        if not bool(torch.isfinite(tensor).all()):
            return name
    return None


def check_before_saving(weights: Mapping[str, Tensor]) -> None:
    """Raise a UserError if a weight is NaN or infinite."""
    if (name := nonfinite(weights)) is not None:
        raise UserError(
            f"the weight {name} is not finite, so nothing was saved; the last checkpoint and the "
            "best model so far are unchanged; lower optimizer.lr"
        )


def check_after_loading(tensors: Mapping[str, Tensor], source: Path | str) -> None:
    """Raise a UserError if a number is NaN or infinite."""
    if (name := nonfinite(tensors)) is not None:
        raise UserError(
            f"{source}: {name} has values that are NaN or infinite; use another checkpoint"
        )


def check_weights(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: Path
) -> None:
    """Compare the weights of a file with those of the model.

    Raises:
        UserError: If a name, a shape or a type differs, or a weight is not finite.
    """
    for name in dict.fromkeys([*expected, *tensors]):
        if name not in tensors or name not in expected:
            reason = f"{name} is {'missing' if name in expected else 'unexpected'}"
        elif kind(tensors[name]) != kind(expected[name]):
            reason = f"{name} has {kind(tensors[name])} instead of {kind(expected[name])}"
        else:
            continue
        raise UserError(
            f"{path}: does not fit the model of the configuration: {reason}; resume with the "
            "options of the training, or start from its model with weights=RUN"
        )
    check_after_loading(tensors, path)


def kind(tensor: Tensor) -> str:
    """Return the shape and the type of a tensor for messages, such as (3, 4) float32."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
