"""Inference on an NVIDIA GPU as graphs, whose kernels are recorded once and then started together.

Starting a small kernel takes longer than computing it. A graph starts all kernels of a call at
once, but it always has the same shapes and reads the same memory. So batches are padded to few
shapes, and copied to buffers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from textwrap import shorten
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from dxn.core.display import Display
from dxn.core.runtime import is_out_of_memory
from dxn.models.model import MultimodalModel, Network
from dxn.tokenize.base import FULL, NUM_REAL

# Returns a function that repeats a call, and the output, which each repetition overwrites.
Record: TypeAlias = Callable[[Callable[[], Any]], tuple[Callable[[], object], Any]]

REPEATS = 3  # calls with the same shapes, of which the last one is recorded
MAX_GRAPHS = 16  # per function. They keep the memory of their buffers and outputs
MAX_KEYS = 1000  # shapes per function whose calls are counted
SAMPLES = 16  # a batch is padded to a power of two up to this, and then to a multiple of it
COLUMNS = 64  # the same for the tokens of a text
# Larger batches are computed as they are: their kernels take longer than starting them.
MAX_SAMPLES = 64
# Texts have a number of real tokens for each of these shares of a batch, or each of these numbers
# of tokens, so that a backbone can remove most padding, see dxn.models.packing.
SHARES = 8
ROWS = 256
NUM_CHECKS = 2  # repetitions that are compared: with the recorded batch, and with another one
# Largest difference of an output, relative to its largest number.
TOLERANCE = 1e-3  # products can be computed in tf32
LOW_TOLERANCE = 5e-2  # with weights in bf16, fp16 or int8
LOW = (torch.bfloat16, torch.float16, torch.int8)
WARM_UPS = 2  # calls before the recording, which create what a library creates in its first call
CONSTANTS = (bool, int, float, str, type(None))
MAX_REASON = 200  # characters

_lock = threading.RLock()  # graphs share memory, so only one of them is used at a time


def capture(network: Network, *, writes: bool) -> None:
    """Let the models of a network compute predictions and embeddings as graphs.

    Args:
        network: A network that is only used, on an NVIDIA GPU.
        writes: Whether it generates texts, which has its own loop.
    """
    for model in network.models:
        for name in ("vectors",) if writes else ("vectors", "forward"):
            setattr(model, name, Captured(model, name))


class Buffer(NamedTuple):
    """What a buffer can hold."""

    shape: tuple[int, ...]
    dtype: torch.dtype


# What batches of a graph have in common, by input and key: buffers, and values on the host.
Layout: TypeAlias = dict[tuple[str, str], Any]


@dataclass(eq=False)
class Graph:
    """A recorded call.

    Args:
        batch: The batch that it reads, with buffers in place of tensors.
        buffers: The same buffers, by input and key.
        replay: Function that repeats the call.
        output: Its output.
        weights: All weights, with their addresses.
        num_checks: Number of repetitions that still have to be compared.
    """

    batch: dict[str, Any]
    buffers: dict[tuple[str, str], Tensor]
    replay: Callable[[], object]
    output: Any
    weights: list[tuple[Tensor, int]]
    num_checks: int = NUM_CHECKS

    def __call__(self, batch: Mapping[str, Any], fills: Mapping[str, Mapping[str, float]]) -> Any:
        """Return the output for a batch."""
        self.read(batch, fills)
        self.replay()
        size, padded = batch["#size"], self.batch["#size"]

        def without_padding(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            is_batch = leaf.ndim > 0 and len(leaf) == padded
            return (leaf[:size] if is_batch else leaf).clone()

        return tree_map(without_padding, self.output)

    def read(self, batch: Mapping[str, Any], fills: Mapping[str, Mapping[str, float]]) -> None:
        """Copy a batch to the buffers. The last sample is repeated."""
        for (name, key), buffer in self.buffers.items():
            value = batch[name][key]
            count = len(value)
            cells = buffer
            if buffer.shape[1:] != value.shape[1:]:
                buffer.fill_(fills[name].get(key, 0))
                cells = buffer[:, : value.shape[1]]
            cells[:count] = value
            if key == "rows":
                # The further samples of an input belong to further samples of the batch.
                stop = batch["#size"] + len(buffer) - count
                cells[count:] = torch.arange(batch["#size"], stop, device=buffer.device)
            elif count < len(buffer):
                cells[count:] = value[-1]

    @property
    def is_current(self) -> bool:
        """Whether all weights are where they were, such as on the same device."""
        return all(weight.data_ptr() == address for weight, address in self.weights)


class Captured:
    """A function of a batch that is recorded as a graph when the same shapes occur again.

    A graph that gives other numbers, or cannot be recorded, is not used. Batches with targets,
    training, and calls outside of torch.inference_mode are computed as they are.

    Args:
        model: The model.
        name: Name of its method.
        record: How a call is recorded. Default: by CUDA.
    """

    def __init__(self, model: MultimodalModel, name: str, record: Record | None = None):
        self.model = model
        self.name = name
        self.record = record
        tokenizers = {name: model.adapter(name).tokenizer for name in model.inputs}
        self.fills = {key: dict(tokenizer.fill) for key, tokenizer in tokenizers.items()}
        self.limits = {key: tokenizer.max_len for key, tokenizer in tokenizers.items()}
        # By shapes, the least recently used ones first: the number of calls, or the graph. None:
        # there is none.
        self.states: OrderedDict[Hashable, int | Graph | None] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "states": OrderedDict()}  # graphs cannot be copied

    def __call__(self, batch: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        """Return what the method returns."""
        is_used = torch.is_inference_mode_enabled() and not self.model.training
        if args or options or not is_used or torch.compiler.is_compiling():
            return self.plain(batch, *args, **options)
        layout: Layout | None = None
        try:
            layout = self._layout(batch)
        except (LookupError, TypeError, AttributeError) as error:  # batches of a user's tokenizer
            _tell(f"unknown batch ({type(error).__name__}: {shorten(str(error), MAX_REASON)})")
        if layout is None:
            return self.plain(batch)
        with _lock:
            return self._call(batch, layout)

    def plain(self, *args: Any, **options: Any) -> Any:
        """Compute the method as it is."""
        return getattr(type(self.model), self.name)(self.model, *args, **options)

    def _call(self, batch: Mapping[str, Any], layout: Layout) -> Any:
        key = tuple(layout.items())
        state = self.states.pop(key, 0)
        output: Any = None
        try:
            if isinstance(state, Graph) and not state.is_current:
                self.states.clear()
                state = 0
            if isinstance(state, int):
                state += 1
                if state == REPEATS:
                    state = self._recorded(batch, layout)
            if isinstance(state, Graph):
                output = state(batch, self.fills)
                if state.num_checks:
                    state.num_checks -= 1
                    expected = self.plain(batch)
                    self._compare(output, expected)
                    output = expected
        except Exception as error:
            state = output = None
            if is_out_of_memory(error):
                self.states.clear()
            _tell(shorten(str(error) or type(error).__name__, MAX_REASON))
        # Outside of the `except` block, in which the traceback refers to the tensors of the graph.
        if not isinstance(state, Graph):
            output = self.plain(batch)
        self.states[key] = state
        if len(self.states) > MAX_KEYS:
            self.states.popitem(last=False)
        return output

    def _layout(self, batch: Mapping[str, Any]) -> Layout | None:
        """Return the padded shapes of a batch and its values on the host. None: no graph."""
        size = batch["#size"]
        if "target" in batch or not 0 < size <= MAX_SAMPLES:
            return None
        padded = captured_size(size, SAMPLES)
        layout: Layout = {("", "#size"): padded}
        for name in self.model.inputs:
            part = batch.get(name)
            if part is None:
                continue
            count = len(part["rows"])
            new = captured_size(count, SAMPLES)
            if new - count > padded - size:  # there are not as many further samples
                new = count
            # Without a limit, it is not known whether there are positions for more tokens.
            limit = self.limits[name] if "mask" in part else 0
            width = part["mask"].shape[1] if limit else 0
            wide = max(width, min(captured_size(width, COLUMNS), limit))
            for key, value in part.items():
                if isinstance(value, Tensor):
                    if value.ndim == 0 or len(value) != count:
                        return None
                    rest = value.shape[1:]
                    is_wide = width > 0 and rest[:1] == (width,)
                    shape = (new, wide, *rest[1:]) if is_wide else (new, *rest)
                    layout[name, key] = Buffer(shape, value.dtype)
                elif key == FULL:
                    layout[name, key] = value and wide == width
                elif key == NUM_REAL:
                    if "mask" not in part:
                        continue  # the number of columns of the further samples is not known
                    length = part["mask"].shape[1]
                    more = (new - count) * length  # the last sample again
                    is_full = wide == width and value == count * length
                    total = new * (wide or length)
                    layout[name, key] = at_least(value + more, total, is_full=is_full)
                elif isinstance(value, CONSTANTS):
                    layout[name, key] = value
                # Lists of values of the samples, such as texts, are left out.
        return layout

    def _recorded(self, batch: Mapping[str, Any], layout: Layout) -> Graph:
        static: dict[str, Any] = {"#size": layout["", "#size"]}
        buffers: dict[tuple[str, str], Tensor] = {}
        for (name, key), value in layout.items():
            if isinstance(value, Buffer):
                device = batch[name][key].device
                buffers[name, key] = torch.empty(value.shape, dtype=value.dtype, device=device)
            if name:
                static.setdefault(name, {})[key] = buffers.get((name, key), value)
        weights = [*self.model.parameters(), *self.model.buffers()]
        addresses = [(weight, weight.data_ptr()) for weight in weights]
        graph = Graph(static, buffers, lambda: None, None, addresses)
        graph.read(batch, self.fills)
        record = self.record or partial(record_on_cuda, weights[0].device)
        graph.replay, graph.output = record(lambda: self.plain(static))
        for leaf in tree_leaves(graph.output):
            if not isinstance(leaf, (Tensor, *CONSTANTS)):
                raise TypeError(f"the output has a {type(leaf).__name__}")
        others = [key for key, state in self.states.items() if isinstance(state, Graph)]
        for key in others[: max(len(others) + 1 - MAX_GRAPHS, 0)]:
            del self.states[key]
        return graph

    def _compare(self, output: Any, expected: Any) -> None:
        """Raise ValueError if the outputs differ by more than rounding."""
        is_low = any(weight.dtype in LOW for weight in self.model.parameters())
        is_low |= any(weight.dtype in LOW for weight in self.model.buffers())
        tolerance = LOW_TOLERANCE if is_low else TOLERANCE
        pairs = zip(tree_leaves(output), tree_leaves(expected), strict=True)
        if not all(_are_close(actual, reference, tolerance) for actual, reference in pairs):
            raise ValueError("the graph has another output than the model")


def record_on_cuda(
    device: torch.device, call: Callable[[], Any]
) -> tuple[Callable[[], object], Any]:
    """Record a call as a CUDA graph, see `Record`."""
    with torch.cuda.device(device):
        present, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(present)
        graph = torch.cuda.CUDAGraph()
        # The outer context returns to the present stream, also if the recording fails. Other
        # threads, such as that of pinned memory, may call CUDA in the meantime.
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                call()
            pool = _pool(device)
            mode = "thread_local"
            try:
                with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode=mode):
                    output = call()
            except Exception:
                # torch takes the memory of a failed recording for one that still goes on, and
                # refuses to record another graph to it.
                _pool.cache_clear()
                raise
        present.wait_stream(side)
    return graph.replay, output


def at_least(num_real: int, total: int, *, is_full: bool) -> int:
    """Return one of a few numbers from `num_real` on. It is `total` only with `is_full`."""
    step = max(ROWS, -(-total // SHARES))
    return total if is_full else min(-(-num_real // step) * step, total - 1)


def captured_size(number: int, step: int) -> int:
    """Return the next power of two up to `step`, or the next multiple of it."""
    return 1 << (number - 1).bit_length() if number <= step else -(-number // step) * step


@cache
def _pool(device: torch.device) -> Any:
    """Return the memory that all graphs share: each of them is complete before the next starts."""
    return torch.cuda.graph_pool_handle()


@cache  # once for each reason
def _tell(reason: str) -> None:
    display = Display(main=True, stderr=True)
    display.line(f"note: batches of some shapes are computed without a CUDA graph: {reason}")
    display.close()


def _are_close(output: Any, expected: Any, tolerance: float) -> bool:
    if not isinstance(expected, Tensor):
        return output == expected
    # The output of a padded text has more columns.
    output = output[tuple(map(slice, expected.shape))]
    if output.shape != expected.shape or output.dtype != expected.dtype:
        return False
    if not expected.is_floating_point():
        return torch.equal(output, expected)
    largest = expected.nan_to_num(0, 0, 0).abs().max() if expected.numel() else 0.0
    limit = tolerance * float(largest)
    return torch.allclose(output, expected, rtol=0, atol=limit, equal_nan=True)
