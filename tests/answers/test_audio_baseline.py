"""The baseline of sounds hears what normalization removes, and what is short."""

import numpy as np
import pytest
import soundfile
from helpers.runs import SMALL, train

from dxn.cli import main

RATE = 8000
# The transformer learns nothing, and sees each clip with the same mean and deviation.
OPTIONS = [*SMALL, "adapters=[audio]", "trainer.epochs=1", "optimizer.lr=1e-6", "preset=plain"]
OPTIONS += ["report=false", "target=label", "adapters.audio.normalize.kind=clip"]
OPTIONS += [f"adapters.audio.sample_rate={RATE}"]


def noise(rand):
    return 0.1 * rand.standard_normal(RATE // 2)


def loud(i, rand):
    return noise(rand) * [1.0, 0.2][i % 2]


def click(i, rand):
    """Equal noise, with or without one short click in the same place of a random clip."""
    x = 0.003 * rand.standard_normal(RATE)
    start = int(rand.integers(500, RATE - 500))
    x[start : start + [0, 20][i % 2]] += 0.3
    return x


def table_of(folder, make, count=80):
    rand = np.random.default_rng(0)
    rows = ["sound,label"]
    for i in range(count):
        soundfile.write(folder / f"{i}.wav", make(i, rand), RATE)
        rows.append(f"{i}.wav,{'ab'[i % 2]}")
    (folder / "sounds.csv").write_text("\n".join(rows))
    return str(folder / "sounds.csv")


@pytest.mark.parametrize(("make", "kind"), [(loud, "clip"), (click, "dataset")])
def test_the_baseline_hears(make, kind, tmp_path):
    table = table_of(tmp_path, make)
    options = [*OPTIONS, f"adapters.audio.normalize.kind={kind}"]
    assert train(tmp_path / "run", table, *options)["test/accuracy[baseline alone]"] == 1


@pytest.mark.exhaustive
def test_the_exported_program_hears_it_too(tmp_path):
    table = table_of(tmp_path, loud)
    train(tmp_path / "run", table, *OPTIONS)
    # The export compares its answers with those of the model.
    command = ["export", f"run={tmp_path / 'run'}", "format=torch", f"output={tmp_path / 'out'}"]
    assert main(command) == 0
