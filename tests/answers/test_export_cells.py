"""An exported program answers as dxn does for every way to write a cell, or says why not."""

import csv
import datetime
import random

import numpy as np
import pandas as pd
import pytest
from helpers.exports import exported
from helpers.runs import PLAIN, SMALL, train

import dxn
from dxn.core.errors import UserError

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.* as unknown"
)
NAN = float("nan")
REVIEW = "a fine boat and a green house"


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Functions from a sample to the probabilities of dxn, and to those of the program."""
    folder = tmp_path_factory.mktemp("cells")
    _write_table(folder / "shop.csv")
    options = [*PLAIN, *SMALL, "trainer.epochs=1", "report=false", "adapters.text.vocab_size=90"]
    train(folder / "run", str(folder / "shop.csv"), "target=answer", *options)
    model = dxn.load(folder / "run", device="cpu")
    with exported(folder / "run", folder / "program") as (_, answer):

        def theirs(sample):
            return answer(sample)["probabilities"][0].tolist()

        yield lambda sample: list(model.predict(**sample)["probabilities"].values()), theirs


@pytest.mark.parametrize(
    "sample",
    [
        *[{"price": cell} for cell in ("€20", "20 €", "€1,234.50", "(20)", "−5", "N/A", "", " ")],
        *[{"price": cell} for cell in ("none", None, NAN, np.float32(20), np.int64(3), 20)],
        *[{"amount": cell} for cell in ("1.234,50", "3,5", "1'234,5", 3.5, "unknown", "#REF!")],
        *[{"share": cell} for cell in ("12 %", "12%", 12, "?")],
        *[{"day": cell} for cell in ("31.1.2026", "2026-01-31T10:30", "20260131", 20260131, "-")],
        *[{"day": cell} for cell in (datetime.date(2026, 1, 31), np.datetime64("2026-01-31"))],
        *[{"day": np.datetime64("2026-01-31", unit)} for unit in ("s", "us", "ns")],
        *[{"price": cell} for cell in (np.timedelta64(20_000, "ms"), np.timedelta64(5, "ns"))],
        *[{"city": cell} for cell in ("Paris", " paris ", "Berlin", "none", "n/a", "?", "", None)],
        *[{name: cell} for name in ("price", "day", "city", "curve") for cell in (pd.NA, pd.NaT)],
        *[{"city": cell} for cell in (3, 3.0, np.float64(3), NAN, ("Paris",), {"Paris"}, [])],
        *[{"flag": cell} for cell in (True, np.True_, "TRUE", "yes", 1, "N/A")],
        *[{"tags": cell} for cell in ("War|Drama", "War|", "War||Drama", "War|N/A", "|", "war")],
        *[{"tags": cell} for cell in (["War", "Drama"], ("War", "Drama"), ["War", None])],
        *[{"code": cell} for cell in ("NA", " NA ", "na", "N/A", "DE")],
        *[
            {"review": cell}
            for cell in ("boat", "FRÜH\u00a0boat", "a\0boat", "日本語 😀", None, NAN)
        ],
        *[{"curve": cell} for cell in ("1 2 NA 4 ? - null none", "[1. 2. 3. 4.]", "[1,2,N/A]")],
        *[{"curve": cell} for cell in ("1 2 3 4,", "nan nan", "", "N/A", [1, None, 3], [NAN, 1])],
        *[{"curve": cell} for cell in (np.arange(9), [[1], [2]], [], "1 2 nan nan")],
    ],
    ids=str,
)
def test_a_program_reads_a_cell_as_dxn_does(answers, sample):
    ours, theirs = answers
    # A row with another input, because the cell can be missing.
    sample = {"review": REVIEW, **sample} if "review" not in sample else {"price": 5, **sample}
    assert theirs(sample) == pytest.approx(ours(sample), abs=1e-5)


def test_a_letter_with_an_accent_can_be_one_or_two_characters(answers):
    for answer in answers:
        assert answer({"city": "Zu\u0308rich"}) == answer({"city": "Z\u00fcrich"})
        assert answer({"city": "Zurich"}) != answer({"city": "Z\u00fcrich"})


@pytest.mark.parametrize(
    "sample",
    [
        *[{"price": cell} for cell in ("$20", "twenty", float("inf"), "1e400", True, np.True_)],
        *[{"city": cell} for cell in ("x" * 201, b"Paris", {"a": 1}, ["Paris", "3"])],
        *[{"tags": cell} for cell in (np.array(["War"]), list("ab") * 40)],
        *[{"day": cell} for cell in ("31.2.2026", 1.5, True)],
        *[{"review": cell} for cell in ("", 5, ["a", "boat"], "\ud800 boat")],
        *[{"curve": cell} for cell in ("1e39 2 3", [1, float("inf")], [True], 5, [[1, 2]])],
        {"price": "N/A"},  # all inputs are missing
    ],
    ids=str,
)
def test_a_program_refuses_a_cell_as_dxn_does(answers, sample):
    ours, theirs = answers
    with pytest.raises(UserError):
        ours(sample)
    with pytest.raises(SystemExit):
        theirs(sample)


def _write_table(path):
    rand = random.Random(0)
    words = [*REVIEW.split(), "früh"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = ["price", "amount", "share", "day", "city", "flag", "tags", "code", "review"]
        writer.writerow([*names, "curve", "answer"])
        for _ in range(44):
            day = f"{rand.randint(1, 28)}.{rand.randint(1, 12)}.{rand.randint(2001, 2026)}"
            curve = [f"{rand.gauss(0, 1):.3f}" for _ in range(rand.randint(5, 9))]
            row = [
                f"€{rand.uniform(1, 90):.2f}",
                f"{rand.randint(1, 9)}.{rand.randint(100, 999)},{rand.randint(10, 99)}",
                f"{rand.randint(0, 99)} %",
                day,
                rand.choice(["Paris", "Zürich", "none", "3"]),
                rand.choice(["true", "false"]),
                "|".join(rand.sample(["Action", "Drama", "Comedy", "War"], rand.randint(1, 3))),
                rand.choice(["NA", "DE", "FR"]),
                " ".join(rand.choice(words) for _ in range(6)),
                " ".join(curve),
                rand.choice("abc"),
            ]
            writer.writerow(row)
