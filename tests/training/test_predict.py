"""Predictions when there is not enough memory, and predictions of a model that gives NaN."""

import errno
import math

import pytest
import torch
from helpers.training import make_model, make_samples, make_task

from dxn.core.errors import UserError
from dxn.runs.predictor.predictor import Predictor
from dxn.training.predict import predict

CPU = torch.device("cpu")
COUNT = 13


def out_of_cpu_memory():
    raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ...")


def out_of_gpu_memory():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def out_of_cpp_memory():
    raise RuntimeError("std::bad_alloc")


def out_of_onednn_memory():
    raise RuntimeError("could not create a primitive")


def out_of_object_memory():
    raise torch.OutOfMemoryError("Failed to allocate a Tensor object")


def out_of_system_memory():
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def out_of_python_memory():
    raise MemoryError


def limited_model(largest, *, fail=out_of_cpu_memory, from_row=0):
    """A model that runs out of memory from a row on, in batches of more samples than `largest`."""
    model = make_model(make_task())
    forward = model.forward
    sizes = []

    def limited(batch, mixing=None):
        if batch["#size"] > largest and max(batch["#index"]) >= from_row:
            fail()
        sizes.append(batch["#size"])
        return forward(batch, mixing)

    model.forward = limited
    return model, sizes


def run(model, *, batch_size=5, samples=None, **options):
    task = make_task()
    samples = samples or make_samples(COUNT, task)
    return predict(model, task, samples, batch_size=batch_size, device=CPU, **options)


@pytest.mark.parametrize(
    "fail",
    [
        out_of_cpu_memory,
        out_of_gpu_memory,
        out_of_cpp_memory,
        out_of_onednn_memory,
        out_of_object_memory,
        out_of_system_memory,
        out_of_python_memory,
    ],
)
def test_batches_are_halved_until_they_fit(fail, capsys):
    expected = run(make_model(make_task()))
    model, sizes = limited_model(2, fail=fail)
    done = []
    predictions = run(model, on_batch=done.append)
    assert sizes == [2, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1]
    assert done == [2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13]
    assert predictions.rows == list(range(COUNT))
    # Batches of other sizes may differ in the last bits.
    torch.testing.assert_close(list(predictions.predicted), list(expected.predicted))
    assert predictions.loss == pytest.approx(expected.loss, rel=1e-6)
    assert capsys.readouterr().err == (
        "note: out of memory with 5 samples per batch; continuing with 3\n"
        "note: out of memory with 3 samples per batch; continuing with 2\n"
    )


def test_finished_batches_are_not_computed_again():
    model, sizes = limited_model(3, from_row=7)
    done = []
    assert run(model, on_batch=done.append).rows == list(range(COUNT))
    assert sizes == [5, 3, 2, 2, 1]


def test_a_sample_that_does_not_fit_is_named():
    model, _ = limited_model(0, from_row=6)
    with pytest.raises(UserError, match=r"^row 6: out of memory with a single sample; use smaller"):
        run(model)
    assert model.training  # the mode is restored


def test_preparing_smaller_batches_can_need_less_memory_too():
    samples = make_samples(COUNT, make_task())
    collate = samples.collate

    def limited(items, *others):
        if len(items) > 2:
            raise MemoryError
        return collate(items, *others)

    samples.collate = limited
    assert run(make_model(make_task()), samples=samples).rows == list(range(COUNT))


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    def fail():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    model, _ = limited_model(0, fail=fail)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run(model)


def extreme_samples(rows, value):
    samples = make_samples(COUNT, make_task())
    for row in rows:
        samples.opened.raws["series"][row][0][1] = value
    return samples


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rows_whose_prediction_is_not_finite_are_named(value):
    samples = extreme_samples([3, 11], value)
    model = make_model(make_task())
    predictions = run(model, samples=samples)
    assert [row for row, p in enumerate(predictions.predicted) if p.isnan().any()] == [3, 11]
    message = r"^row 3, row 11: the output of the model is not finite \(NaN or infinite\); if"
    # Two batches, each of which is complete when it is checked.
    with pytest.raises(UserError, match=r"^row 3: the output"):
        run(model, samples=samples, finite=True)
    with pytest.raises(UserError, match=message):
        run(model, samples=samples, finite=True, batch_size=COUNT)


@pytest.mark.parametrize("method", ["run", "vectors"])
def test_a_predictor_of_damaged_weights_says_so(method):
    task = make_task()
    model = make_model(task)
    with torch.no_grad():
        model.adapters["series"].proj.weight[0] = math.nan
    predictor = Predictor(model.eval(), task)
    with pytest.raises(UserError, match=r"^row 0, row 1, row 2, row 3, row 4 and 8 more: the out"):
        getattr(predictor, method)(make_samples(COUNT, task))
