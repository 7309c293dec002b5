"""Process-wide settings, which the command line, Python, tests and benchmarks share."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from dxn.core.errors import UserError

# Parameters of glibc's mallopt, from malloc.h.
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
MAX_MMAP_THRESHOLD = 1 << 30  # bytes
# How often an idle OpenMP thread looks for work before it sleeps. It must outlast the Python code
# between two operations, because waking a thread takes longer than most operations. The default of
# 300,000 wastes cores that processes share. Measured on two cores, seconds per epoch of
# experiment=sst2, alone and beside a second training:
#
#     0 (OMP_WAIT_POLICY=PASSIVE)   10.5   10
#     1,000                          8.8   11
#     2,500                          6.7   14
#     10,000                         6.5   25
#     50,000                         6.2   80
SPINS = "2500"
# Kernels that oneDNN, and torch's interface to it, keep for operations of other shapes. Each needs
# 0.5 MB in bf16, and the default of 1,024 was 600 MB after a hundred batches of texts. A step of a
# small model with pictures and texts uses about 60.
KERNELS = "256"
# Messages of the CPU and of GPUs: of torch, of C++, and of oneDNN, which computes layers.
OUT_OF_MEMORY = (
    "out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "CUDNN_STATUS_NOT_SUPPORTED",
    "std::bad_alloc",
    "could not create a primitive",
    "could not execute a primitive",
    "could not create a memory object",
)
MAX_IMPORT = 8 * 10**9  # bytes of address space, more than the import of any build of torch needs
MAX_TRIM_THRESHOLD = (1 << 31) - 1  # bytes; the largest int


def configure() -> None:
    """Set environment variables and options of the C library before torch is imported.

    Variables that the user has already set are kept. Calling the function again has no effect.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    # By default, MKL may choose another code path in each process. Then the last bits of a Fourier
    # transform differ between processes, and runs with equal seeds have different spectrograms.
    os.environ.setdefault("MKL_CBWR", "AUTO")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS)
    os.environ.setdefault("LRU_CACHE_CAPACITY", KERNELS)  # of torch's interface to oneDNN
    # In a notebook, tqdm warns that ipywidgets is missing. dxn shows its progress without it.
    warnings.filterwarnings("ignore", message="IProgress not found")
    # Let the C library keep freed memory: returning large blocks to the operating system and
    # requesting them again takes a tenth of each training step on a CPU.
    # Only glibc has mallopt. On macOS and Windows the call fails, and is not needed.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(MMAP_THRESHOLD, MAX_MMAP_THRESHOLD)
        library.mallopt(TRIM_THRESHOLD, MAX_TRIM_THRESHOLD)


def check_address_space(module: str) -> None:
    """Import a module in another process if the address space is limited, as by `ulimit -v`.

    The libraries of torch map gigabytes. If these do not fit, some of them abort the process, which
    no exception shows.

    Raises:
        UserError: If the import fails in this address space.
    """
    try:
        import resource
    except ImportError:  # Windows
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit > MAX_IMPORT or "torch" in sys.modules:
        return
    command = [sys.executable, "-c", f"import {module}"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise UserError(
            "out of memory: the limit of the address space (ulimit -v) is "
            f"{limit / 1e9:.1f} GB, in which PyTorch cannot be imported; raise it, or remove it "
            "with ulimit -v unlimited"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was too short, on the CPU or on an accelerator."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, RuntimeError):
        return any(text in str(error) for text in OUT_OF_MEMORY) or (
            "torch" in sys.modules and isinstance(error, sys.modules["torch"].OutOfMemoryError)
        )
    return isinstance(error, MemoryError)


def choose_bf16(device: Any) -> tuple[bool, str]:
    """Return whether matrix products in bf16 are faster than in float32, and a note that says why.

    Args:
        device: The device (torch.device).
    """
    import torch  # which must not be imported before `configure`

    advice = ""
    if device.type == "cuda":
        # Older GPUs compute in float32 and round the results.
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        advice = "" if bf16 else "; with tensor cores, trainer.precision=fp16 is faster"
    else:
        # Without these instructions, products in bf16 are slower.
        bf16 = device.type == "cpu" and (
            torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        )
    has = "has" if bf16 else "has no"
    return bf16, f"{'bf16' if bf16 else 'float32'}: the device {has} instructions for bf16{advice}"


def free_memory() -> None:
    """Free what an operation that ran out of memory has left behind."""
    import torch  # which must not be imported before `configure`

    gc.collect()
    release_memory()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def release_memory() -> None:
    """Return unused memory to the operating system, although the C library keeps freed memory.

    Reading thousands of files leaves small gaps between the values that are kept. They add up to
    almost half of the size of the values, and are too small for the tensors of a model. Arrow has
    its own memory, which the C library cannot use.
    """
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    # Only glibc has malloc_trim. On macOS and Windows the call fails, and is not needed.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def num_cores() -> int:
    """Return the number of processor cores that this process may use."""
    if sys.platform == "linux":  # the function does not exist on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def spare_processes() -> int:
    """Return the number of processes that this one may fork to read files; 0: none."""
    # Without fork, each process would start with an import of torch and a copy of all samples.
    # allow_none: otherwise the call would set the method, and the application could not choose one.
    method = multiprocessing.get_start_method(allow_none=True)
    if (method or multiprocessing.get_all_start_methods()[0]) != "fork":
        return 0
    # torchrun starts several training processes per machine, which share its cores.
    cores = num_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # A single one would only take turns with this process.
    return cores if cores > 1 else 0


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use this number of threads inside of the context."""
    import torch  # which must not be imported before `configure`

    before = torch.get_num_threads()
    if before != count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if before != count:
            torch.set_num_threads(before)
