"""Forecasts: laws, the seasonal naive forecast, scaled errors, the loss and wrong targets."""

import math

import numpy as np
import pytest
import torch
from helpers.tasks import assert_same, build_model, make_batch, overfit, predict
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_pinball_loss

from dxn.core.errors import UserError
from dxn.tasks import Forecast
from dxn.tasks.forecast.futures import (
    ForecastMetric,
    Future,
    increasing,
    pinball,
    read_values,
    seasonal_naive,
    seasonal_scale,
)
from dxn.tokenize import SeriesAdapter, TextAdapter, TokenizerOptions

examples = settings(max_examples=30, deadline=None)
H, T, SEASON = 5, 13, 3
NAN = math.nan
STATE = {
    "horizon": 2,
    "season": 1,
    "residual": "season",
    "context": 3,
    "num_channels": 2,
    "channels": ["a"],
}


def column(*values):
    """A series of one channel."""
    return torch.tensor(values, dtype=torch.float32)[:, None]


def series_of(count, channels=1, steps=T, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(steps, channels, generator=generator) for _ in range(count)]


def futures_of(histories, channels=1, *, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        Future(torch.randn(H, channels, generator=generator), season=SEASON, history=history)
        for history in histories
    ]


def model_of(task, histories, futures, **options):
    """A small model, whose adapter and task are fitted on these samples."""
    torch.manual_seed(0)
    adapter = SeriesAdapter(16, patch_size=2, **options).fit(histories)
    adapters = {"series": adapter}
    task.target.bind(adapters)
    task.target.fit(futures)
    return build_model(task, adapters), adapters


def test_the_seasonal_naive_forecast_repeats_the_last_season():
    naive = seasonal_naive(column(9, 1, 2, 3), 7, 3)
    assert naive[:, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert seasonal_naive(column(9, 1), 3, 1)[:, 0].tolist() == [1, 1, 1]


def test_missing_values_of_the_last_season_come_from_the_one_before():
    naive = seasonal_naive(column(5, 1, NAN, 3, NAN, NAN), 3, 2)
    assert naive[:, 0].tolist() == [5, 3, 5]
    # Nothing is known at this point of the season, so the last value of the series is repeated.
    assert seasonal_naive(column(NAN, 7, NAN, 8), 2, 2)[:, 0].tolist() == [8, 8]
    assert seasonal_naive(column(NAN, NAN), 2, 1).isnan().all()


def test_a_history_shorter_than_a_season_repeats_what_it_has():
    assert seasonal_naive(column(4, 6), 5, 5)[:, 0].tolist() == [6, 6, 6, 4, 6]


@given(st.integers(1, 7), st.integers(1, 23), st.integers(1, 11), st.integers(0, 2**31))
@examples
def test_batches_of_series_have_the_same_naive_forecast_as_each_alone(season, steps, horizon, seed):
    x = torch.randn(2, 3, steps, 2, generator=torch.Generator().manual_seed(seed))
    x[x > 1] = NAN
    together = seasonal_naive(x, horizon, season)
    assert together.shape == (2, 3, horizon, 2)
    for i in range(2):
        for j in range(3):
            alone = seasonal_naive(x[i, j], horizon, season)
            torch.testing.assert_close(together[i, j], alone, equal_nan=True)


def test_the_scale_of_an_error_is_the_mean_absolute_seasonal_difference():
    history = torch.tensor([[1.0, 5], [2, 5], [4, 5], [NAN, 5], [8, 5]])
    scale = seasonal_scale(history, 2)
    assert scale[0] == (3 + 4) / 2
    assert scale[1].isnan()  # a constant channel has no scale
    assert seasonal_scale(column(1, 2, 4), 7) == pytest.approx(1.5)  # shorter than a season


def test_the_pinball_loss_is_that_of_scikit_learn_times_two():
    rng = np.random.default_rng(0)
    true, predicted = rng.normal(size=11), rng.normal(size=(11, 3))
    levels = (0.1, 0.5, 0.8)
    losses = pinball(torch.tensor(predicted), torch.tensor(true), torch.tensor(levels).double())
    for i, level in enumerate(levels):
        expected = 2 * mean_pinball_loss(true, predicted[:, i], alpha=level)
        assert float(losses[:, i].mean()) == pytest.approx(expected, rel=1e-6)


def test_the_pinball_loss_of_the_median_is_the_absolute_error():
    assert_same(pinball(torch.tensor([[3.0]]), torch.tensor([1.0]), torch.tensor([0.5])), [[2.0]])


@given(st.integers(1, 7), st.data())
@examples
def test_quantiles_never_cross(count, data):
    middle = data.draw(st.integers(0, count - 1))
    numbers = st.floats(-50, 50, width=32)
    raw = torch.tensor(data.draw(st.lists(numbers, min_size=count, max_size=count)))
    quantiles = increasing(raw[None], middle)[0]
    assert quantiles[middle] == raw[middle]
    assert (quantiles.diff() >= 0).all()


def test_the_metrics_are_those_of_their_definitions():
    history = column(0, 2, 0, 2, 3)
    future = Future(column(1.0, NAN, 3.0), season=2, scale=seasonal_scale(history, 2))
    forecast = torch.tensor([[0.0, 2.0, 4.0], [9, 9, 9], [3.5, 4, 5]])[:, None]
    metrics = ForecastMetric((0.1, 0.5, 0.9)).metrics([forecast], [future], NAN)
    assert metrics["mae"] == pytest.approx((1 + 1) / 2)
    assert metrics["mase"] == pytest.approx(1 / 1)  # differences at lag 2: 0, 0, 3
    assert metrics["coverage"] == pytest.approx(0.5)
    losses = [0.2 * 1, 1, 0.2 * 3, 1.8 * 0.5, 1, 0.2 * 2]
    assert metrics["crps"] == pytest.approx(sum(losses) / 6)


def test_a_forecast_without_quantiles_has_no_coverage_and_its_crps_is_its_mae():
    future = Future(column(1.0, 2.0), season=1, scale=torch.ones(1))
    metrics = ForecastMetric((0.1, 0.5, 0.9)).metrics([torch.zeros(2, 1, 1)], [future], NAN)
    assert "coverage" not in metrics and metrics["crps"] == metrics["mae"] == 1.5


@pytest.mark.parametrize("residual", ["season", "last", "none"])
@pytest.mark.parametrize("read", ["tokens", "pooled"])
def test_a_forecast_is_equivariant_to_shift_and_scale_of_the_series(residual, read):
    task = Forecast(residual=residual, read=read)
    histories = series_of(3)
    model, adapters = model_of(task, histories, futures_of(histories))
    torch.nn.init.normal_(model.head.out.weight)
    model.eval()
    moved = [3 * history - 17 for history in histories]
    first = predict(task, model, make_batch(task, adapters, {"series": histories}))
    second = predict(task, model, make_batch(task, adapters, {"series": moved}))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(b, 3 * a - 17, rtol=1e-4, atol=1e-3)


def test_an_untrained_model_predicts_the_seasonal_naive_forecast():
    task = Forecast()
    histories = series_of(3)
    model, adapters = model_of(task, histories, futures_of(histories))
    model.eval()
    for history, forecast in zip(
        histories,
        predict(task, model, make_batch(task, adapters, {"series": histories})),
        strict=True,
    ):
        torch.testing.assert_close(forecast[..., 2].float(), seasonal_naive(history, H, SEASON))
        assert (forecast.diff(dim=-1) > 0).all()


@pytest.mark.parametrize("read", ["tokens", "pooled"])
def test_of_a_history_longer_than_max_len_patches_the_end_is_read(read):
    task = Forecast(read=read)
    histories = series_of(3)
    model, adapters = model_of(task, histories, futures_of(histories), max_len=2)
    torch.nn.init.normal_(model.head.out.weight)
    model.eval()
    read_steps = 4  # of two patches with two steps each
    assert adapters["series"].tokenizer.cut(histories[0]) == (read_steps, T)
    other_start = [torch.cat([-5 * x[:-read_steps], x[-read_steps:]]) for x in histories]
    other_end = [torch.cat([x[:-read_steps], x[-read_steps:].square()]) for x in histories]
    first, same, different = (
        torch.stack(predict(task, model, make_batch(task, adapters, {"series": x})))
        for x in (histories, other_start, other_end)
    )
    assert_same(first, same)
    assert not torch.allclose(first, different)
    # The seasonal naive forecast, to which the output is added, is that of the same steps.
    torch.nn.init.zeros_(model.head.out.weight)
    forecasts = predict(task, model, make_batch(task, adapters, {"series": histories}))
    for x, forecast in zip(histories, forecasts, strict=True):
        naive = seasonal_naive(x[-read_steps:], H, SEASON)
        torch.testing.assert_close(forecast[..., 2].float(), naive)


def test_missing_future_values_have_no_loss():
    task = Forecast()
    histories = series_of(2)
    futures = futures_of(histories)
    model, adapters = model_of(task, histories, futures)
    batch = make_batch(task, adapters, {"series": histories}, futures)
    output = model(batch)
    changed = {**batch, "target": batch["target"].clone()}
    changed["target"][1, 2:] = NAN
    kept = batch["target"].clone()
    kept[1, 2:] = NAN
    valid = ~kept.isnan()
    assert task.loss(output, changed).weight == H + 2
    assert task.loss(output, batch).weight == 2 * H
    unit = {key: batch["series"][key][:, None] for key in ("loc", "scale")}
    true = torch.stack([future.values for future in futures])
    assert_same(batch["target"], (true - unit["loc"]) / unit["scale"])
    expected = pinball(output, batch["target"], torch.tensor(task.quantiles)).mean(-1)
    expected = expected[valid].mean()
    assert_same(task.loss(output, changed).mean, expected)
    assert torch.isfinite(task.loss(output, {**batch, "target": batch["target"] * NAN}).mean)


def test_eight_samples_are_overfitted():
    task = Forecast(dropout=0.0)
    histories = series_of(8, channels=2)
    futures = futures_of(histories)
    model, adapters = model_of(task, histories, futures)
    batch = make_batch(task, adapters, {"series": histories}, futures)
    losses = overfit(task, model, batch, goal=0.02)
    assert losses[-1] < 0.02 < losses[0]


def test_the_batch_and_the_length_of_the_other_series_change_nothing():
    task = Forecast()
    histories = series_of(3)
    model, adapters = model_of(task, histories, futures_of(histories))
    torch.nn.init.normal_(model.head.out.weight)
    model.eval()
    short = histories[1][-4:]
    together = make_batch(task, adapters, {"series": [histories[0], short]})
    alone = make_batch(task, adapters, {"series": [short]})
    assert_same(predict(task, model, together)[1], predict(task, model, alone)[0], atol=1e-5)


def test_a_channel_without_any_value_gets_no_forecast_and_no_part_in_the_metrics():
    task = Forecast()
    histories = series_of(3, channels=2)
    futures = futures_of(histories, channels=2)
    model, adapters = model_of(task, histories, futures)
    model.eval()
    empty = histories[0].clone()
    empty[:, 1] = NAN
    batch = make_batch(task, adapters, {"series": [empty, histories[1]]})
    forecasts = predict(task, model, batch)
    assert forecasts[0][:, 1].isnan().all() and not forecasts[0][:, 0].isnan().any()
    assert not forecasts[1].isnan().any()
    assert [row["prediction_2"] for row in task.table(forecasts[0])] == [None] * H
    assert {cells[1] for cells in task.answer(forecasts[0])["prediction"]} == {None}
    # The sums of five metrics are followed by the numbers of their values.
    numbers = task.metric.rows(forecasts, futures[:2]).chunk(2, -1)[1]
    assert numbers[:, 1].tolist() == [H, 2 * H]


def test_a_longer_history_than_that_of_the_training_is_cut_to_its_end():
    task = Forecast(residual="none")
    histories = series_of(3)
    model, adapters = model_of(task, histories, futures_of(histories))
    torch.nn.init.normal_(model.head.out.weight)
    model.eval()
    longer = torch.cat([series_of(1, seed=5)[0], histories[0]])
    batches = [make_batch(task, adapters, {"series": [raw]}) for raw in (histories[0], longer)]
    assert torch.equal(*(predict(task, model, batch)[0] for batch in batches))


def test_other_inputs_may_accompany_the_series():
    task = Forecast(read="pooled", dropout=0.0)
    histories = series_of(2)
    futures = futures_of(histories)
    torch.manual_seed(0)
    words = ["up", "down"]
    adapters = {
        "text": TextAdapter(16, tokenizer=TokenizerOptions(kind="word")).fit(words),
        "series": SeriesAdapter(16, patch_size=2).fit(histories),
    }
    task.target.bind(adapters)
    task.target.fit(futures)
    model = build_model(task, adapters)
    raws = {"text": words, "series": [histories[0], histories[0]]}
    batch = make_batch(task, adapters, raws, futures)
    losses = overfit(task, model, batch, goal=0.02)
    assert losses[-1] < 0.02  # only the text tells the two samples apart


def test_the_head_needs_exactly_one_series():
    task = Forecast()
    text = TextAdapter(8)
    with pytest.raises(UserError, match=r"exactly one series as an input.*got none among text"):
        task.target.bind({"text": text})
    with pytest.raises(UserError, match=r"got left, right"):
        task.target.bind({"left": SeriesAdapter(8), "right": SeriesAdapter(8)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantiles": (0.1, 0.9)}, "with 0.5 among them"),
        ({"quantiles": (0.9, 0.5)}, "ascending"),
        ({"quantiles": (0.0, 0.5)}, "between 0 and 1"),
        ({"quantiles": (0.5, 1.0)}, "between 0 and 1"),
        (
            {"residual": "year"},
            "residual must be one of 'season', 'last', 'mean' or 'none'",
        ),
        ({"read": "all"}, "read must be one of 'tokens' or 'pooled', got 'all'"),
        ({"season": 0}, "season must be at least 1, got 0"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Forecast(**options)


@pytest.mark.parametrize(
    ("cell", "values"),
    [
        ("1.5 2 nan", [[1.5], [2], [NAN]]),
        ([1, None, 3], [[1], [NAN], [3]]),
        ([[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        ("[1, 2]", [[1], [2]]),
        ("[[1, 2], [3, null]]", [[1, 2], [3, NAN]]),
        ("0,5;0,7;0,9", [[0.5], [0.7], [0.9]]),
        (np.array([1.0, 2.0]), [[1], [2]]),
    ],
)
def test_target_cells_are_lists_of_numbers_in_many_forms(cell, values):
    expected = torch.tensor(values, dtype=torch.float32)
    torch.testing.assert_close(read_values(cell), expected, equal_nan=True)


def test_commas_in_future_values_are_read_alike_in_all_rows():
    target = Forecast().target
    target.find_format(["0,5;0,7", "1,5 2,5"], [])
    assert target.read("1,5 2,5", "", {}).values.flatten().tolist() == [1.5, 2.5]
    with pytest.raises(UserError, match="row 2: the target cannot be read: a comma can be"):
        Forecast().target.read("1,050 2,060", "row 2", {})


@pytest.mark.parametrize("cell", ["up", "", [], [[1], [2, 3]], {"a": 1}, [[[1]]], True, 3.5])
def test_other_target_cells_are_refused_in_a_sentence(cell):
    with pytest.raises(UserError, match=r"t.csv row 2: the target must be a list of future values"):
        Forecast().target.read(cell, "t.csv row 2", {})


def test_a_target_gets_the_history_and_the_scale_of_its_row():
    task = Forecast(season=2)
    history = column(1, 2, 4, 4)
    raws = {"text": "words", "series": history}
    done = task.target.read([1.0, 2.0], "t.csv row 2", raws)
    assert done.history is history
    assert_same(done.scale, [2.5])
    with pytest.raises(UserError, match=r"the target has 2 channels, but the series only has 1"):
        task.target.read([[1, 2]], "t.csv row 2", raws)


def test_a_target_of_other_channels_than_the_training_is_refused():
    task = Forecast()
    task.target.load(STATE | {"channels": ["a", "b"]})
    with pytest.raises(UserError, match=r"must have 2 channels \(a, b\), got 1"):
        task.target.read([1.0, 2.0], "t.csv row 2", {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"horizon": 0}, "horizon must be at least 1, got 0"),
        ({"season": "12"}, "season must be an integer, got '12'"),
        ({"context": 10**9}, "context must be at most 100000"),
        ({"channels": ["a", "b", "c"]}, "channels must be at most 2 names"),
        ({"channels": 3}, "channels must be a list, got 3"),
    ],
)
def test_a_wrong_state_is_refused(change, message):
    with pytest.raises(UserError, match=message):
        Forecast().target.load(STATE | change)


def test_predictions_have_one_row_per_step_and_columns_per_channel():
    task = Forecast(quantiles=(0.1, 0.5))
    task.target.load(STATE | {"channels": ["a", "b"]})
    forecast = torch.tensor([[[1.0, 2], [3, 4]], [[5, 6], [7, NAN]]])
    target = Future(torch.tensor([[9.0, 8.0]]))
    rows = task.table(forecast, target)
    assert list(rows[0]) == [
        *("step", "target_a", "prediction_a", "q0.1_a"),
        *("target_b", "prediction_b", "q0.1_b"),
    ]
    assert [row["target_a"] for row in rows] == [9.0, None]
    assert rows[1]["prediction_a"] == 6 and rows[1]["prediction_b"] is None
    answer = task.answer(forecast)
    assert answer["prediction"] == [[2, 4], [6, None]] == answer["quantiles"]["0.5"]


def test_the_state_survives_the_model_folder(tmp_path):
    task = Forecast()
    histories = series_of(2, channels=3)
    model_of(task, histories, futures_of(histories))
    task.save(tmp_path)
    restored = Forecast().load(tmp_path)
    assert restored.target.state() == task.target.state()
    assert (restored.target.context, restored.target.num_channels) == (T, 3)
    assert restored.target.season == SEASON
