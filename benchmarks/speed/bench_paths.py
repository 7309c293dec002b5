"""Rows of bench.py: what dxn does on a GPU only, beside the plain path: inference.

Both sides are dxn. The answers of both are compared, and the difference is a fact of the row, also
if it is too large: then the times are of interest too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from bench_row import OURS, Call, Options, Row, Unequal, Work
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

import dxn
from dxn.models import Backbone, EarlyFusion, LanguageModel, beam_search, compiling, generate
from dxn.models import inference as inference_models
from dxn.models.decoding import generation
from dxn.models.inference import convert
from dxn.models.packing import has_kernel
from dxn.runs.predictor.captured import NUM_CHECKS, REPEATS, Captured, Graph
from dxn.tasks import Classify, Language
from dxn.tokenize import ImageAdapter, TextAdapter, TokenizerOptions
from dxn.training import device as on_devices

PLAIN = "plain"
# Facts of each row, which benchmarks/gpu.py shows.
GAP = "relative difference of the answers"
ALLOWED = "allowed difference"
# Rounding in bf16 adds up over the blocks, and differs between kernels.
LOW, HIGH = 5e-2, 1e-3
INT8 = 0.2  # of the outputs of a random model, whose weights have no structure
WORDS = 5000


class Size(NamedTuple):
    """Size of a model and of its inputs."""

    dim: int
    depth: int
    num_heads: int
    side: int = 224  # of an image
    lengths: tuple[int, int] = (26, 263)  # tokens of the shortest and of the longest text


BASE = Size(768, 12, 12)
SMALL = Size(384, 12, 6)
TINY = Size(128, 2, 4, side=32, lengths=(3, 9))
NEW, TINY_NEW = 128, 20  # tokens, of which a GPU captures at least `generation.MIN_CAPTURED`


def images(options: Options, size: Size, count: int) -> tuple[dxn.Model, list[dict[str, Any]]]:
    """Return a vision transformer, and rows with random pictures."""
    size, count = (TINY, 2) if options.tiny else (size, count)
    rand = np.random.default_rng(0)
    shape = count, size.side, size.side, 3
    pictures = list(rand.integers(0, 256, shape, dtype=np.uint8))
    torch.manual_seed(0)
    adapter = ImageAdapter(size.dim, patch_size=16, image_size=size.side).fit(pictures[:2])
    return _model("image", adapter, size), _rows("image", pictures)


def texts(options: Options, size: Size, count: int) -> tuple[dxn.Model, list[dict[str, Any]]]:
    """Return a text classifier, and rows with texts of different lengths."""
    size, count = (TINY, 4) if options.tiny else (size, count)
    rand = np.random.default_rng(0)
    lengths = torch.linspace(*size.lengths, count).round().int().tolist()
    sentences = [" ".join(f"w{i}" for i in rand.integers(0, WORDS, length)) for length in lengths]
    torch.manual_seed(0)
    adapter = TextAdapter(size.dim, tokenizer=TokenizerOptions(kind="word")).fit(sentences)
    return _model("text", adapter, size), _rows("text", sentences)


def _model(name: str, adapter: Any, size: Size) -> dxn.Model:
    backbone = Backbone(size.dim, depth=size.depth, num_heads=size.num_heads)
    return dxn.Model({name: adapter}, backbone=backbone, head=Classify(), targets=["a", "b"])


def _rows(name: str, values: Iterable[Any]) -> list[dict[str, Any]]:
    return [{name: value, "target": "ab"[i % 2]} for i, value in enumerate(values)]


def prepared(model: dxn.Model, options: Options, **conversion: Any) -> dxn.Model:
    """Convert a model as `dxn.load` does, on its device."""
    model = model.to(options.device).eval()
    convert(model, options.dtype, **conversion)
    return model


def batch_for(model: dxn.Model, rows: list[dict[str, Any]], options: Options) -> dict[str, Any]:
    """Return the batch of some rows without their targets, on the device."""
    batch = model.eval().collate(rows)
    return on_devices.to_device({k: v for k, v in batch.items() if k != "target"}, options.device)


def beside(
    path: Callable[[], Any],
    plain: Callable[[], Any],
    options: Options,
    *,
    allowed: float | None = None,
) -> Work:
    """Return the work of a path and of the plain path, after a comparison of what they return."""
    if allowed is None:
        allowed = LOW if options.dtype == torch.bfloat16 else HIGH
    gaps = [0.0]
    for ours, expected in zip(tree_leaves(path()), tree_leaves(plain()), strict=True):
        if isinstance(expected, Tensor) and expected.is_floating_point():
            largest = max(float(expected.abs().max()), 1e-9)
            gaps.append(float((ours.float() - expected.float()).abs().max()) / largest)
        elif isinstance(expected, Tensor):
            gaps.append(float((ours != expected).float().mean()))  # share of other tokens
    # max would drop NaN.
    gap = float(torch.tensor(gaps).max())
    return Work({OURS: _called(path), PLAIN: _called(plain)}, facts={GAP: gap, ALLOWED: allowed})


def _called(call: Callable[[], Any]) -> Call:
    """Return a call without a result, because a number would be taken for a measurement."""

    def run() -> None:
        call()

    return run


def captured(options: Options, *, make: Any, size: Size, count: int) -> Work:
    """Predictions as CUDA graphs."""
    model, rows = make(options, size, count)
    model = prepared(model, options)
    batch = batch_for(model, rows, options)
    function = Captured(model, "forward")
    path, plain = (torch.inference_mode()(partial(f, batch)) for f in (function, function.plain))
    for _ in range(REPEATS + NUM_CHECKS):
        path()
    if not any(isinstance(state, Graph) for state in function.states.values()):
        raise Unequal("no graph was recorded; a note above says why")
    return beside(path, plain, options)


def written(options: Options, *, beams: int = 0, compiled: bool = False, count: int = 8) -> Work:
    """Texts of a language model of the size of GPT-2 small, with captured or compiled steps."""
    size, new = (TINY, TINY_NEW) if options.tiny else (BASE, NEW)
    words = " ".join(f"w{number}" for number in range(WORDS))
    torch.manual_seed(0)
    adapter = TextAdapter(size.dim, max_len=256, tokenizer=TokenizerOptions(kind="word")).fit(
        [words]
    )
    backbone = Backbone(size.dim, depth=size.depth, num_heads=size.num_heads, causal=True)
    fusion = EarlyFusion(size.dim, inputs=("text",), pool="mean")
    model = dxn.Model({"text": adapter}, backbone=backbone, fusion=fusion, head=Language())
    language = LanguageModel(prepared(model, options))
    prompt = torch.randint(4, WORDS, (count, 16), device=options.device)
    settings: dict[str, Any] = {"prompt": prompt, "end": (), "max_new": new}
    write: Any = partial(beam_search, beams=beams) if beams else generate

    def ids(device_with_graphs: str, **more: Any) -> Tensor:
        with mock.patch.object(generation, "HAS_GRAPHS", device_with_graphs):
            return torch.tensor([each.ids for each in write(language, None, **settings, **more)])

    plain = partial(ids, "none")
    if compiled:
        # On a CPU, packed weights divide the graph.
        is_whole = options.device.type != "cpu"
        steps = partial(torch.compile, fullgraph=is_whole, backend=compiling.BACKEND)
        path = partial(ids, "none", compile_step=steps)
    else:
        path = partial(ids, options.device.type)
        capture = mock.Mock(wraps=generation.capture)
        results: list[Any] = []
        capture.side_effect = lambda *args: results.append(captured_step(*args)) or results[-1]
        captured_step = generation.capture
        with mock.patch.object(generation, "capture", capture):
            path()
        if not results or results[0] is None:
            raise Unequal("no step was captured; a note above says why")
    # After a token that rounding has changed, the texts of compiled steps are others.
    return beside(path, plain, options, allowed=0.5 if compiled else 0.0)


def packed(options: Options, *, size: Size, count: int) -> Work:
    """Texts without padding, by the kernel for sequences of different lengths."""
    model, rows = texts(options, size, count)
    model = prepared(model, options)
    check_kernel(model, options)
    batch = batch_for(model, rows, options)

    @torch.inference_mode()
    def run(packed: bool) -> Any:
        model.backbone.packed = packed
        return model(batch)

    return beside(partial(run, True), partial(run, False), options)


def check_kernel(model: dxn.Model, options: Options) -> None:
    x = torch.empty(1, model.backbone.dim, device=options.device, dtype=options.dtype)
    if options.device.type == "cuda" and not has_kernel(x, model.backbone.head_dim):
        raise Unequal(f"there is no kernel for {options.dtype} on this GPU")


def prefetched(options: Options, *, size: Size, count: int, batches: int = 8) -> Work:
    """Predictions for batches that are copied to the GPU during the computation before them."""
    model, rows = images(options, size, count)
    model = prepared(model, options)
    batch = model.collate(rows)
    del batch["target"]

    def pinned() -> Iterator[dict[str, Any]]:
        for _ in range(batches):
            # As the loader does: pinning takes time too.
            yield tree_map_only(Tensor, _pinned, batch) if options.device.type == "cuda" else batch

    @torch.inference_mode()
    def path() -> list[Tensor]:
        return [model(each) for each in on_devices.on_device(pinned(), options.device)]

    @torch.inference_mode()
    def plain() -> list[Tensor]:
        each = range(batches)
        return [model(on_devices.to_device(batch, options.device)) for _ in each]

    return beside(path, plain, options)


def _pinned(tensor: Tensor) -> Tensor:
    return tensor.pin_memory()


def converted(
    options: Options, *, count: int, allowed: float | None = None, **conversion: Any
) -> Work:
    """Predictions with int8 products, or with products of adapters in the dtype of the model."""
    model, rows = images(options, BASE, count)
    path = prepared(copy.deepcopy(model), options, **conversion)
    # Without a conversion, the path is that of adapters, whose layers are wide enough for it.
    changed = {} if conversion else {"MIN_ADAPTER_WIDTH": 10**9}
    with mock.patch.dict(vars(inference_models), changed):
        plain = prepared(model, options)
    batch = batch_for(plain, rows, options)
    calls = [torch.inference_mode()(partial(each, batch)) for each in (path, plain)]
    return beside(calls[0], calls[1], options, allowed=allowed)


ROWS = tuple(
    Row(name, title, "path", partial(build, **arguments), rounds=5, gpu=True)
    for name, title, build, arguments in (
        ("path_graph_image", "CUDA graph: ViT-B/16, 1 image", captured,
         {"make": images, "size": BASE, "count": 1}),
        ("path_graph_images", "CUDA graph: ViT-B/16, 16 images", captured,
         {"make": images, "size": BASE, "count": 16}),
        ("path_graph_texts", "CUDA graph: BERT-base, 16 texts of 26 to 263 tokens", captured,
         {"make": texts, "size": BASE, "count": 16}),
        ("path_graph_writing", "CUDA graph of a step: GPT-2 small, 8 prompts", written, {}),
        ("path_graph_beams", "CUDA graph of a step: the same, 4 beams", written, {"beams": 4}),
        ("path_compiled_writing", "compiled step: the same, greedy", written, {"compiled": True}),
        ("path_kernel_texts", "attention without padding: BERT-base, 64 texts", packed,
         {"size": BASE, "count": 64}),
        ("path_prefetch", "pinned memory and a stream for copies: ViT-S/16, 8 batches of 256",
         prefetched, {"size": SMALL, "count": 256}),
        ("path_int8", "int8: ViT-B/16, 256 images", converted,
         {"count": 256, "int8": True, "allowed": INT8}),
        ("path_low_adapter", "adapters in bf16: ViT-B/16, 256 images", converted, {"count": 256}),
    )
)  # fmt: skip
