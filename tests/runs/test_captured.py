"""Graphs of predictions: padded batches in buffers give the outputs of the model.

There is no GPU here. In place of CUDA, a recording computes the same buffers again, and writes the
result to the memory of the first one.
"""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from unittest.mock import Mock

import pytest
import torch
from helpers import varlen
from hypothesis import given
from hypothesis import strategies as st
from models.test_device import FUSIONS, LAYERS, MODALITIES, TAGS, VALUES, model_of
from torch.utils._pytree import tree_leaves

from dxn.models.decoding.decoder import Decoder
from dxn.models.model import Ensemble
from dxn.runs.predictor import captured
from dxn.runs.predictor.captured import REPEATS, Captured, Graph, captured_size
from dxn.tasks import Classify, Contrastive, Generate, Multilabel, Regress, Tag
from dxn.tokenize import EmbeddingOptions
from dxn.training.device import to_device

TARGETS = [1.0, 2.0, 3.0, 4.0]
# So often the same batch is computed before a graph is trusted.
TRUSTED = REPEATS + captured.NUM_CHECKS


@pytest.fixture(autouse=True)
def no_notes(monkeypatch):
    """What is told to the user."""
    notes = []
    monkeypatch.setattr(captured, "_tell", notes.append)
    return notes


def record(call):
    """Record a call as CUDA does: a repetition overwrites the output."""
    output = call()

    def replay():
        new = tree_leaves(call())
        for old, leaf in zip(tree_leaves(output), new, strict=True):
            if isinstance(old, torch.Tensor):
                old.copy_(leaf)

    return replay, output


def rows_of(names, count, *, missing=()):
    rows = [{name: VALUES[name][i % 4] for name in names} for i in range(count)]
    for i, name in missing:
        rows[i][name] = None
    return rows


def graphs_of(function):
    return [state for state in function.states.values() if isinstance(state, Graph)]


def close(output, expected, atol=1e-4):
    for own, other in zip(tree_leaves(output), tree_leaves(expected), strict=True):
        if isinstance(other, torch.Tensor):
            own = own[tuple(map(slice, other.shape))]
        torch.testing.assert_close(own, other, rtol=1e-4, atol=atol)


@torch.inference_mode()
def check(model, batches):
    """Each batch has the outputs of the model, without and with a graph."""
    model.eval()
    for name in ("forward", "vectors"):
        function = Captured(model, name, record)
        for batch in batches:
            batch.pop("target", None)  # a prediction has none
            expected = function.plain(batch)
            for _ in range(TRUSTED + 1):
                close(function(batch), expected)
        assert graphs_of(function)
        assert not any(graph.num_checks for graph in graphs_of(function))
    return function


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("names", [*((name,) for name in MODALITIES), MODALITIES], ids="-".join)
def test_inputs(names, fusion, no_notes):
    model = model_of(Regress(), names, TARGETS, fusion=fusion)
    batches = [model.collate(rows_of(names, 3))]
    if len(names) > 1:
        batches.append(model.collate(rows_of(names, 3, missing=[(1, names[0]), (2, names[1])])))
    check(model, batches)
    assert no_notes == []


@pytest.mark.parametrize(
    ("make", "names", "targets", "options"),
    [
        (Classify, ["text", "image"], ["x", "y", "x", "y"], {}),
        (Multilabel, ["text"], [["x"], ["x", "y"], [], ["y"]], {}),
        (partial(Contrastive, embedding_dim=8), ["text", "image"], None, {}),
        (Regress, ["text"], TARGETS, {"embedding": EmbeddingOptions(pool=2)}),
        (Regress, ["text"], TARGETS, {"max_len": 10}),
    ],
    ids=["classify", "multilabel", "contrastive", "pool", "max_len"],
)
def test_tasks(make, names, targets, options, no_notes):
    model = model_of(make(), names, targets, **options)
    check(model, [model.collate(rows_of(names, 3))])
    assert no_notes == []


def test_tags(no_notes):
    model = model_of(Tag(), ["text"], TAGS)
    model.backbone.packed = False  # a packed batch has zeros at padding, which nobody reads
    batch = model.collate([{"text": text.split()} for text in VALUES["text"][:3]])
    function = check(model, [batch])
    del function
    with torch.inference_mode():
        forward = Captured(model, "forward", record)
        outputs = [forward(batch) for _ in range(TRUSTED + 1)]
    tags = [model.task.predict(model.head, output, batch) for output in outputs]
    assert [each.tags for each in tags[-1]] == [each.tags for each in tags[0]]
    assert no_notes == []


@pytest.mark.parametrize("name", ["text", "image", "category"])
@torch.inference_mode()
def test_batches_of_one_to_nine_samples_have_few_graphs(name):
    model = model_of(Regress(), [name], TARGETS).eval()
    function = Captured(model, "forward", record)
    for count in list(range(1, 10)) * TRUSTED:
        batch = model.collate(rows_of([name], count))
        close(function(batch), function.plain(batch))
    sizes = sorted(graph.batch["#size"] for graph in graphs_of(function))
    # A single picture has another size than a batch of pictures of several sizes.
    assert set(sizes) == {1, 2, 4, 8, 16}
    assert len(sizes) <= {"image": 7}.get(name, 6)


@torch.inference_mode()
def test_graphs_without_padding_in_the_blocks(monkeypatch, no_notes):
    """The kernel of a GPU computes all real tokens as one sequence. Not here."""
    monkeypatch.setattr("dxn.models.packing.has_kernel", lambda x, head_dim: True)
    monkeypatch.setattr("dxn.models.packing.ROWS", 4)
    monkeypatch.setattr(captured, "ROWS", 4)
    model = model_of(Regress(), ["text"], TARGETS).eval()
    batches = [model.collate(rows_of(["text"], count)) for count in (1, 3, 4, 5)]
    varlen.calls.clear()
    check(model, batches)
    assert varlen.calls
    assert no_notes == []


@given(st.integers(1, 5000), st.integers(0, 5000))
def test_only_a_full_batch_has_the_number_of_all_tokens(total, num_padding):
    num_real = max(total - num_padding, 0)
    bound = captured.at_least(num_real, total, is_full=num_real == total)
    assert num_real <= bound <= total
    assert (bound == total) == (num_real == total)
    bounds = {captured.at_least(n, total, is_full=n == total) for n in range(total + 1)}
    assert len(bounds) <= captured.SHARES + 2


def test_a_batch_is_padded_to_few_sizes():
    sizes = [captured_size(n, 16) for n in (1, 2, 3, 5, 9, 16, 17, 33)]
    assert sizes == [1, 2, 4, 8, 16, 16, 32, 48]


@torch.inference_mode()
def test_an_output_is_no_part_of_a_graph():
    names = ["text", "image"]
    model = model_of(Contrastive(embedding_dim=8), names).eval()
    function = Captured(model, "forward", record)
    batch = model.collate(rows_of(names, 4))
    del batch["target"]  # a prediction has none
    other = {**batch, "image": {**batch["image"], "pixels": 255 - batch["image"]["pixels"]}}
    outputs = [function(batch) for _ in range(TRUSTED + 1)]
    (graph,) = graphs_of(function)
    memory = {memory_of(each) for each in [*graph.buffers.values(), *tensors(graph.output)]}
    assert not any(memory_of(leaf) in memory for leaf in tensors(outputs))
    kept = [leaf.clone() for leaf in tensors(outputs[-1])]
    changed = tensors(function(other))
    assert not torch.allclose(changed[0], kept[0])
    assert all(map(torch.equal, kept, tensors(outputs[-1])))


def tensors(output):
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def memory_of(tensor):
    return tensor.untyped_storage().data_ptr()


def number_model():
    model = model_of(Regress(), ["number"], TARGETS).eval()
    return model, model.collate(rows_of(["number"], 3))


def refuse(call):
    raise RuntimeError("operation not permitted when stream is capturing")


def forget_the_input(call):
    """A graph that does not read its buffers, such as one with a value of the host."""
    return lambda: None, call()


def give_noise(call):
    return lambda: None, torch.randn_like(call())


@pytest.mark.parametrize(
    ("recording", "note"),
    [
        (refuse, "operation not permitted when stream is capturing"),
        (forget_the_input, "the graph has another output than the model"),
        (give_noise, "the graph has another output than the model"),
        (lambda call: (call, object()), "the output has a object"),
    ],
)
@torch.inference_mode()
def test_a_graph_that_fails_is_replaced_by_the_model(recording, note, no_notes):
    model, batch = number_model()
    function = Captured(model, "forward", recording)
    for i in range(TRUSTED + 2):
        changed = {**batch, "number": {**batch["number"], "value": batch["number"]["value"] + i}}
        assert torch.equal(function(changed), function.plain(changed))
    assert list(function.states.values()) == [None]
    assert no_notes == [note]


def test_a_failed_recording_leaves_its_memory_to_no_other_graph(monkeypatch):
    pools = []

    @contextmanager
    def graph(graph, *, pool, **options):
        pools.append(pool)
        yield

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    for name in ("Stream", "CUDAGraph", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Mock())
    for name in ("stream", "device"):
        monkeypatch.setattr(torch.cuda, name, lambda x: nullcontext())
    captured._pool.cache_clear()
    device, results = torch.device("cuda"), iter([*"aa", RuntimeError("not permitted"), *"aaaaaa"])
    call = Mock(side_effect=results)
    with pytest.raises(RuntimeError, match="not permitted"):
        captured.record_on_cuda(device, call)
    for _ in range(2):
        captured.record_on_cuda(device, call)
    captured._pool.cache_clear()
    assert pools[0] is not pools[1] and pools[1] is pools[2]


@torch.inference_mode()
def test_a_batch_of_an_unknown_form_is_computed_by_the_model(no_notes):
    model, batch = number_model()
    function = Captured(model, "forward", record)
    unknown = {**batch, "number": {**batch["number"], "#real": 3, "mask": None}}
    for _ in range(TRUSTED):
        assert torch.equal(function(unknown), function.plain(batch))
    assert not function.states
    assert (
        no_notes
        == ["unknown batch (AttributeError: 'NoneType' object has no attribute 'shape')"] * TRUSTED
    )


@torch.inference_mode()
def test_graphs_are_dropped_when_memory_is_short_or_weights_have_moved():
    model, batch = number_model()
    function = Captured(model, "forward", record)
    for _ in range(TRUSTED):
        function(batch)
    (graph,) = graphs_of(function)
    model.double().float()
    close(function(batch), function.plain(batch))
    assert graphs_of(function) == []
    for _ in range(TRUSTED):
        function(batch)

    def lack_memory():
        raise torch.OutOfMemoryError("CUDA out of memory")

    (graph,) = graphs_of(function)
    graph.replay = lack_memory
    close(function(batch), function.plain(batch))
    assert list(function.states.values()) == [None]


@torch.inference_mode()
def test_only_the_graphs_that_are_used_are_kept(monkeypatch):
    monkeypatch.setattr(captured, "MAX_GRAPHS", 2)
    monkeypatch.setattr(captured, "MAX_KEYS", 3)
    model, _ = number_model()
    function = Captured(model, "forward", record)
    for count in (1, 2, 4, 8, 16):
        for _ in range(TRUSTED):
            function(model.collate(rows_of(["number"], count)))
    assert [graph.batch["#size"] for graph in graphs_of(function)] == [8, 16]
    assert len(function.states) == 2


@pytest.mark.parametrize("reason", ["training", "gradients", "target", "size"])
def test_other_batches_are_computed_as_they_are(reason, monkeypatch):
    model = model_of(Regress(), ["text"], TARGETS).eval()
    rows = rows_of(["text"], 4)
    if reason == "target":
        rows = [{**row, "target": 1.0} for row in rows]
    monkeypatch.setattr(captured, "MAX_SAMPLES", 3 if reason == "size" else 64)
    model.train(reason == "training")
    function = Captured(model, "forward", record)
    with torch.inference_mode(reason != "gradients"):
        for _ in range(TRUSTED):
            function(model.collate(rows))
    assert not graphs_of(function)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@torch.inference_mode()
def test_a_copy_of_a_model_has_graphs_of_its_own(copied):
    model, batch = number_model()
    captured.capture(model, writes=False)
    model.forward.record = None
    other = copied(model)
    assert other.forward.model is other and other.vectors.name == "vectors"
    assert torch.equal(other(batch), model(batch))
    assert len(other.forward.states) == 1


def test_threads_do_not_share_buffers_at_the_same_time():
    model, _ = number_model()
    function = Captured(model, "forward", record)
    batches = [model.collate([{"number": float(i)}]) for i in range(8)]
    with torch.inference_mode():
        expected = [float(function.plain(batch)) for batch in batches]
        for batch in batches:
            function(batch)

    @torch.inference_mode()
    def compute(i):
        return [float(function(batches[i])) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        for i, values in enumerate(pool.map(compute, range(8))):
            assert values == pytest.approx([expected[i]] * 20, abs=1e-5)


def test_a_predictor_on_a_gpu_uses_graphs(monkeypatch):
    """The device is a CPU that is called a GPU."""
    monkeypatch.setattr(captured, "record_on_cuda", lambda device, call: record(call))
    names = ["text", "image"]
    model = model_of(Classify(), names, ["x", "y", "x", "y"])
    predictor = model.predictor
    assert predictor.optimized() is predictor and "forward" not in model.__dict__
    expected = predictor.predict_many(rows_of(names, 3))
    vectors = predictor.embed(rows_of(names, 3))
    predictor.device = torch.device("cuda")
    predictor.optimized()
    predictor.device = torch.device("cpu")
    for _ in range(TRUSTED + 1):
        answers = predictor.predict_many(rows_of(names, 3))
        assert [a["prediction"] for a in answers] == [a["prediction"] for a in expected]
        torch.testing.assert_close(predictor.embed(rows_of(names, 3)), vectors)
    assert graphs_of(model.forward) and graphs_of(model.vectors)


def test_a_model_that_generates_texts_embeds_with_graphs():
    head = Generate(decoder=partial(Decoder, LAYERS), max_len=9)
    model = model_of(head, ["image"], VALUES["text"]).eval()
    captured.capture(model, writes=model.task.writes)
    assert "forward" not in model.__dict__ and "vectors" in model.__dict__
    model.vectors.record = record
    batch = model.collate(rows_of(["image"], 2))
    with torch.inference_mode():
        for _ in range(TRUSTED + 1):
            close(model.vectors(batch), model.vectors.plain(batch))
    assert graphs_of(model.vectors)


@torch.inference_mode()
def test_each_member_of_an_ensemble_has_a_graph():
    members = [model_of(Classify(), ["number"], ["x", "y", "x", "y"]).eval() for _ in range(2)]
    network = Ensemble(members, members[0].task.space.mean)
    batch = members[0].collate(rows_of(["number"], 3))
    expected = network(batch)
    captured.capture(network, writes=False)
    for member in members:
        member.forward.record = record
    for _ in range(TRUSTED + 1):
        close(network(batch), expected)
    assert all(graphs_of(member.forward) for member in members)


@pytest.mark.parametrize(
    "fusion",
    [
        "early",
        pytest.param("late", marks=pytest.mark.exhaustive),
        pytest.param("bottleneck", marks=pytest.mark.exhaustive),
    ],
)
@torch.inference_mode()
def test_a_recorded_call_asks_the_device_for_no_value(fusion, monkeypatch, no_notes):
    """On the device meta, tensors have no values. A recording by CUDA cannot read them either."""
    monkeypatch.setattr(Captured, "_compare", lambda *args: None)
    model = model_of(Regress(), MODALITIES, TARGETS, fusion=fusion).eval()
    rows = rows_of(MODALITIES, 3, missing=[(1, "text"), (2, "image")])
    batch = to_device(model.collate(rows), torch.device("meta"))
    function = Captured(model.to("meta"), "forward", record)
    for _ in range(TRUSTED + 1):
        assert function(batch).shape == (3, 1)
    assert len(graphs_of(function)) == 1
    assert no_notes == []
