"""Masked pretraining: masks per sample, the loss by hand, and metrics that add up."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from helpers.tasks import adapters_stub, assert_same, build_model, make_batch, overfit, predict
from torch.nn import functional as F

from dxn.core.errors import UserError
from dxn.tasks import Masked
from dxn.tokenize import (
    AudioAdapter,
    ImageAdapter,
    ImageAugment,
    SpectrogramOptions,
    TextAdapter,
    TokenizerOptions,
)

D = 14
SENTENCES = [f"cats {i % 3} chase {i * 5 % 7} mice and {i % 4} dogs" for i in range(8)]
WORD = TokenizerOptions(kind="word")


def picture(i, height=21, width=34):
    """Stripes, whose direction and width differ."""
    rows, columns = np.mgrid[:height, :width]
    stripes = np.sin((rows * (i % 2) + columns * (1 - i % 2)) * (0.5 + 0.2 * i))
    return np.repeat((127 + 127 * stripes)[..., None], 3, 2).astype(np.uint8)


def sound(i, length=1600):
    return np.sin(np.arange(length) * (0.05 + 0.05 * i)).astype(np.float32), 8000


def text_adapter():
    return TextAdapter(D, tokenizer=WORD)


def image_adapter(**options):
    return ImageAdapter(D, image_size=None, patch_size=8, **options)


def audio_adapter():
    return AudioAdapter(D, sample_rate=8000, spectrogram=SpectrogramOptions(n_mels=8))


def setting(*, count=8, ratios=None, span=5, inputs=("story", "photo", "noise"), dim=D, **options):
    """A bound task, its fitted adapters, raw inputs, and a model."""
    torch.manual_seed(3)
    sources = {
        "story": (text_adapter, SENTENCES),
        "photo": (lambda: image_adapter(**options), [picture(i) for i in range(8)]),
        "noise": (audio_adapter, [sound(i) for i in range(8)]),
    }
    adapters, raws = {}, {}
    for name in inputs:
        make, cells = sources[name]
        adapters[name] = make()
        raws[name] = [adapters[name].tokenizer.reader.read(cell) for cell in cells[:count]]
        adapters[name].fit(raws[name])
    task = Masked(mask_ratio=ratios or {}, span=span)
    task.target.bind(adapters)
    return task, adapters, raws, build_model(task, adapters, dim=dim)


def batch_of(task, adapters, raws, seed=0):
    return make_batch(task, adapters, raws, rand=random.Random(seed))


# Masks


def encoded(task, sample, seed):
    """A masked copy of a sample."""
    masked = dict(sample)
    assert task.target.encode(None, masked, random.Random(seed)) is None
    return masked


def test_the_masks_depend_on_the_random_generator_and_the_sample_only():
    task, adapters, raws, _ = setting()
    sample = {name: adapters[name].tokenizer(column[1]) for name, column in raws.items()}
    before = copy.deepcopy(sample)
    first, again, other = (encoded(task, sample, s) for s in (1, 1, 2))
    for name in raws:
        assert torch.equal(first[name]["masked"], again[name]["masked"])
        for key, value in before[name].items():
            is_text = isinstance(value, str)
            assert value == sample[name][key] if is_text else torch.equal(value, sample[name][key])
    assert not all(torch.equal(first[n]["masked"], other[n]["masked"]) for n in raws)
    assert task.target.random and not task.is_supervised


def test_an_input_that_a_sample_lacks_is_not_masked():
    task, adapters, raws, model = setting(count=3)
    raws["photo"][1] = None
    batch = batch_of(task, adapters, raws)
    statistics = torch.stack(predict(task, model, batch))
    assert batch["photo"]["rows"].tolist() == [0, 2]
    assert statistics[1, 1].tolist() == [0, 0, 0] and (statistics[[0, 2], 1, 1] > 0).all()


def test_without_masks_there_is_nothing_to_predict():
    task, adapters, raws, model = setting(count=3)
    plain = {
        name: {
            **adapters[name].tokenizer.collate([adapters[name].tokenizer(r) for r in column]),
            "rows": torch.arange(3),
        }
        for name, column in raws.items()
    }
    assert not torch.stack(predict(task, model, {"#size": 3, **plain})).any()


def test_the_task_can_be_sent_to_a_worker():
    task, adapters, raws, _ = setting()
    received = pickle.loads(pickle.dumps(task))
    sample = {"story": adapters["story"].tokenizer(raws["story"][0])}
    one, other = (encoded(t, sample, 5) for t in (task, received))
    assert torch.equal(one["story"]["ids"], other["story"]["ids"])


# The head


def encoded_of(model, batch):
    return model.eval().requires_grad_(False).encode(model.embed(batch))


def test_token_ids_are_predicted_with_the_embedding_of_the_adapter():
    task, adapters, raws, model = setting(ratios={"story": 0.5}, inputs=("story",))
    batch = batch_of(task, adapters, raws)
    tokens, pooled = encoded_of(model, batch)
    statistics = model.head(tokens, pooled, batch)
    predictor, target = model.head.predictors[0], iter(batch["story"]["masked_target"].tolist())
    for row, columns in enumerate(batch["story"]["masked"]):
        total = correct = 0.0
        for i in columns.nonzero()[:, 0]:
            x = F.gelu(predictor.dense(tokens.x[row, i]))
            logits = adapters["story"].embedding.weight @ predictor.norm(x)
            true = next(target)
            total -= float(logits.log_softmax(-1)[true])
            correct += float(logits.argmax() == true)
        assert_same(statistics[row, 0], [total, int(columns.sum()), correct], atol=1e-4)
    assert next(target, None) is None


@pytest.mark.parametrize("name", ["photo", "noise"])
def test_numbers_are_predicted_with_one_linear_map(name):
    task, adapters, raws, model = setting(ratios={name: 0.5}, inputs=(name,))
    batch = batch_of(task, adapters, raws)
    tokens, pooled = encoded_of(model, batch)
    statistics = model.head(tokens, pooled, batch)
    part, i = batch[name], 0
    for row, columns in enumerate(part["masked"]):
        total = count = 0.0
        for column in columns.nonzero()[:, 0]:
            error = model.head.predictors[0](tokens.x[row, column]) - part["masked_target"][i]
            valid = part["masked_valid"][i]
            total += float(error[valid].square().sum())
            count += int(valid.sum())
            i += 1
        got = statistics[row, 0]
        assert float(got[0]) == pytest.approx(total, rel=1e-4)
        assert got[1:].tolist() == [count, 0]
    assert i == len(part["masked_target"]) > 0


def test_the_weights_of_the_head_do_not_include_the_embedding():
    _, _, _, model = setting()
    names = [name for name, _ in model.head.named_parameters()]
    layers = ("0.dense", "0.norm", "1", "2")
    expected = {f"predictors.{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
    assert set(names) == expected
    copied = copy.deepcopy(model)
    assert copied.head.embeddings["story"] is copied.adapters["story"].embedding


def test_two_inputs_may_share_an_adapter_and_have_any_name():
    adapter = text_adapter().fit(SENTENCES)
    adapters = {"front page": adapter, "v1.2": adapter}
    task = Masked(mask_ratio={"text": 0.5})
    task.target.bind(adapters)
    head = task.make_head(D, D, adapters)
    assert head.inputs == ("front page", "v1.2") and len(head.predictors) == 2


# Loss and metrics


def test_the_loss_is_the_mean_over_inputs_of_sums_over_counts():
    task, *_ = setting()
    output = torch.tensor(
        [[[4.0, 3, 2], [0, 0, 0], [5, 2, 0]], [[2.0, 1, 1], [0, 0, 0], [0, 0, 0]]]
    )
    assert float(task.loss(output, {}).mean) == pytest.approx((6 / 4 + 5 / 2) / 2)
    predictions = task.predict(None, output, {})
    assert task.metric.metrics(predictions, [], float("nan")) == {
        "loss": pytest.approx((1.5 + 2.5) / 2),
        "loss_story": 1.5,
        "loss_noise": 2.5,
        "accuracy": 0.75,
    }


def test_figures_do_not_depend_on_the_batches():
    task, adapters, raws, model = setting()
    model.eval()
    whole = task.metric.metrics(predict(task, model, batch_of(task, adapters, raws)), [], 0.0)
    rand = random.Random(0)  # goes on from one batch to the next
    parts = []
    for rows in (slice(0, 5), slice(5, 8)):
        some = {name: column[rows] for name, column in raws.items()}
        parts += predict(task, model, make_batch(task, adapters, some, rand=rand))
    pieces = task.metric.metrics(parts, [], 0.0)
    assert set(whole) == {"loss", "loss_story", "loss_photo", "loss_noise", "accuracy"}
    assert pieces == pytest.approx(whole, rel=1e-4)


def test_a_batch_in_which_nothing_is_masked_has_zero_gradients():
    task, adapters, raws, model = setting(
        ratios={"story": 1e-9, "photo": 0}, inputs=("story", "photo")
    )
    batch = batch_of(task, adapters, raws)
    assert not batch["story"]["masked"].any() and "masked" not in batch["photo"]
    loss = task.loss(model(batch), batch).mean
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_token_dropout_does_not_remove_what_is_to_be_predicted():
    augment = ImageAugment(token_dropout=0.5)
    task, adapters, raws, model = setting(inputs=("photo",), augment=augment)
    batch = batch_of(task, adapters, raws)
    assert torch.isfinite(task.loss(model.train()(batch), batch).mean)


def test_only_the_input_of_a_subset_counts():
    task, adapters, raws, model = setting()
    batch = batch_of(task, adapters, {"photo": raws["photo"]})
    figures = task.metric.metrics(predict(task, model, batch), [], 0.0)
    assert set(figures) == {"loss", "loss_photo"} and figures["loss"] == figures["loss_photo"]


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mask_ratio": {"story": 1.0}},
            "mask_ratio.story must be below 1, got 1.0",
        ),
        ({"mask_ratio": {"story": -0.1}}, "mask_ratio.story must be at least 0"),
        ({"span": 0}, "span must be at least 1, got 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Masked(**options)


def test_ratios_of_other_inputs_and_of_nothing_are_refused():
    adapters = {"story": text_adapter().fit(SENTENCES)}
    with pytest.raises(UserError, match=r"head\.mask_ratio\.photo: there is no such input"):
        Masked(mask_ratio={"photo": 0.5}).target.bind(adapters)
    with pytest.raises(UserError, match="no input is masked, got the inputs story; set a rat"):
        Masked(mask_ratio={"story": 0.0}).target.bind(adapters)
    with pytest.raises(UserError, match="this input cannot be masked"):
        Masked(mask_ratio={"price": 0.5}).target.bind(adapters_stub(price={}))
    with pytest.raises(UserError, match=r"trainer\.mixup: cannot be combined with head=masked"):
        Masked().check({"trainer": {"mixup": 1.0}})


def test_a_ratio_by_modality_counts_unless_the_input_has_its_own():
    adapters = {name: text_adapter().fit(SENTENCES) for name in ("title", "body")}
    task = Masked(mask_ratio={"text": 0.5, "title": 0.25})
    task.target.bind(adapters)
    assert [m.ratio for m in task.target.maskings.values()] == [0.25, 0.5]
    assert task.target.describe([]) == "the masked columns of title, body"


# Learning


@pytest.mark.parametrize("name", ["story", "photo", "noise"])
def test_eight_samples_are_overfitted(name):
    task, adapters, raws, model = setting(ratios={name: 0.3}, inputs=(name,), dim=D)
    batch = batch_of(task, adapters, raws)
    losses = overfit(task, model, batch, goal=0.15, steps=400)
    assert losses[0] > 0.5 and losses[-1] < 0.15
