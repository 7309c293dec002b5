"""Compare forecasts of one season with the seasonal naive forecast, ETS and SARIMAX.

    python benchmarks/studies/forecasting.py [co2] [sunspots] [--seeds 0 1 2] [--output DIR]

The series are bundled with statsmodels: the monthly means of the CO2 concentration at Mauna Loa
(season 12), and the yearly number of sunspots (season 11). Months are the usual step of the CO2
series: a season of 52 weeks is not a year exactly, and 59 weeks are missing, but only 5 months.

All forecasts start at each step of the test part, the last 10% of the steps. No method is fitted
again there. dxn is trained on the first 80%, and the next 10% select the epoch. The peers are
fitted on both together, and read all values before the start of a forecast. The options of dxn were
chosen on the validation part. MASE is the mean over all starts, with the same scales for all
methods.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dxn.core.runtime import configure

configure()  # it sets environment variables that torch reads when it is imported

import numpy as np  # noqa: E402
import statsmodels.api as sm  # noqa: E402
import torch  # noqa: E402
from statsmodels.tsa.exponential_smoothing.ets import ETSModel  # noqa: E402

import dxn  # noqa: E402
from dxn.data.series.timeline import timeline  # noqa: E402
from dxn.tasks.forecast.futures import ForecastMetric, Future, seasonal_naive  # noqa: E402
from dxn.tokenize.series.reader import SeriesReader  # noqa: E402

COMMON = ["adapters=[series]", "dim=64", "backbone.depth=2", "backbone.dropout=0.2"]
COMMON += ["head=forecast", "head.dropout=0.3", "trainer.epochs=30", "trainer.precision=float32"]


@dataclass(frozen=True)
class Case:
    """A series and the options of the methods.

    Args:
        column: Name of the column of values.
        season: Season length in steps, which is also the horizon.
        options: Options of `dxn train` besides COMMON.
        ets: Options of the ETS model.
        sarimax: Options of the SARIMAX model.
    """

    column: str
    season: int
    options: Sequence[str]
    ets: dict[str, Any]
    sarimax: dict[str, Any]


CASES = {
    "co2": Case(
        "co2",
        12,
        ["head.residual=last"],
        {"trend": "add", "damped_trend": True, "seasonal": "add", "seasonal_periods": 12},
        {"order": (1, 1, 1), "seasonal_order": (0, 1, 1, 12)},
    ),
    "sunspots": Case(
        "SUNACTIVITY",
        11,
        [],
        {"seasonal": "add", "seasonal_periods": 11},
        {"order": (9, 0, 0), "trend": "c"},
    ),
}
# A function that returns the forecast (H,) from all values before its start.
Method = Callable[[np.ndarray], np.ndarray]


def write_series(name: str, folder: Path) -> Path:
    """Write a series as a CSV file with a column of times."""
    data = getattr(sm.datasets, name).load_pandas().data
    if name == "co2":
        data = data.resample("MS").mean().rename_axis("month").reset_index()
    path = folder / f"{name}.csv"
    data.to_csv(path, index=False)
    return path


def peers(case: Case, values: np.ndarray) -> dict[str, Method]:
    """Fit the peers on all values (T,) before the test part."""
    filled = interpolated(values)
    ets: Any = ETSModel(filled, **case.ets).fit(disp=False)
    sarimax: Any = sm.tsa.SARIMAX(values, **case.sarimax).fit(disp=False, maxiter=200)

    def forecast_ets(history: np.ndarray) -> np.ndarray:
        smoothed: Any = ETSModel(interpolated(history), **case.ets).smooth(ets.params)
        return np.asarray(smoothed.forecast(case.season))

    return {
        "ETS": forecast_ets,
        "SARIMAX": lambda history: np.asarray(sarimax.apply(history).forecast(case.season)),
    }


def interpolated(values: np.ndarray) -> np.ndarray:
    """Return the values (T,) with linear interpolation of missing ones, which ETS cannot read."""
    steps = np.arange(len(values))
    valid = np.isfinite(values)
    return np.interp(steps, steps[valid], values[valid])


def mase(futures: Sequence[Future], forecasts: Sequence[np.ndarray]) -> float:
    """Return the MASE of forecasts (H,)."""
    predicted = [torch.tensor(forecast)[:, None, None] for forecast in forecasts]
    return ForecastMetric((0.5,)).metrics(predicted, futures, np.nan)["mase"]


def measure(name: str, folder: Path, seeds: Sequence[int]) -> dict[str, list[float]]:
    """Return the test MASE of each method; one value per seed for dxn."""
    case = CASES[name]
    path = write_series(name, folder)
    source = timeline(str(path), readers={"series": SeriesReader()}, target=case.column)
    with path.open(newline="", encoding="utf-8") as file:
        cells = [row[case.column] for row in csv.DictReader(file)]
    values = np.array([float(cell) if cell else np.nan for cell in cells])
    test = source.splits["test"]
    futures = test.cells["target"]
    # Row 2 of the file is the first value, and the origin is the last row of a history.
    ends = [int(origin.rsplit(" ", 1)[1]) - 1 for origin in test.origin]
    result: dict[str, list[float]] = {}
    naive = [seasonal_naive(h, case.season, case.season) for h in test.cells["series"]]
    result["seasonal naive"] = [mase(futures, [forecast[:, 0].numpy() for forecast in naive])]
    for method, forecast in peers(case, values[: ends[0]]).items():
        result[method] = [mase(futures, [forecast(values[:end]) for end in ends])]
    result["dxn"] = []
    for seed in seeds:
        run = folder / f"{name}-{seed}"
        options = [f"data.path={path}", f"target={case.column}", f"seed={seed}", f"run={run}"]
        dxn.train("data=timeline", *options, *COMMON, *case.options)
        metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
        result["dxn"].append(metrics["test/mase"])
        print(f"{name} seed {seed}: {metrics}", flush=True)
    return result


def main() -> None:
    """Print the MASE of each method for each series."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"series: {', '.join(CASES)} (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path, help="folder of the runs (default: temporary)")
    arguments = parser.parse_args()
    if wrong := set(arguments.names) - set(CASES):
        sys.exit(f"the series are {', '.join(CASES)}, got {', '.join(sorted(wrong))}")
    # A fit that does not converge is as good as the one that it found.
    warnings.filterwarnings("ignore", module="statsmodels")
    folder = arguments.output or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or CASES:
        result = measure(name, folder, arguments.seeds)
        naive = result["seasonal naive"][0]
        for method, figures in result.items():
            mean = statistics.mean(figures)
            spread = f" (seeds: {', '.join(f'{f:.3f}' for f in figures)})" if figures[1:] else ""
            print(f"{name}: {method}: MASE {mean:.3f}, {mean / naive:.2f} of naive{spread}")


if __name__ == "__main__":
    main()
