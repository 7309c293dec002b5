"""Long texts: several words per column, chosen by the preset from the measured speed."""

import pandas as pd
import pytest
import torch
import yaml
from helpers.runs import PLAIN, SMALL, refused, train

import dxn
from dxn.cli import main

POOL = "adapters.text.embedding.pool=4"
OPTIONS = [*SMALL, "adapters=[text]", "adapters.text.tokenizer.kind=word", "target=label"]
OPTIONS += ["report=false", "trainer.epochs=1"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    words = [f"word{i}" for i in range(30)]
    rows = [
        " ".join(words[(i * j) % 30] for j in range(150 + i % 7)) + f",{'ab'[i % 2]}"
        for i in range(60)
    ]
    path = tmp_path_factory.mktemp("long") / "texts.csv"
    path.write_text("\n".join(["text,label", *rows]))
    return str(path)


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("long") / "run"
    train(folder, table, *OPTIONS, *PLAIN, POOL)
    return folder


def test_a_column_is_the_mean_of_its_words(run):
    model = dxn.load(run)
    text = "word1 word2 word3 word4 word5 word6"
    tokens = model.tokens(text=text)
    assert tokens.mask.tolist() == [[True, True]]
    # The first column covers four words, and the last one the two that are left.
    assert tokens.spans[0].coords[0].tolist() == [[0, 23], [24, 35]]
    adapter = model.adapters["text"]
    adapter.tokens_per_column = 1
    single = model.tokens(text=text).x[0]
    expected = torch.stack([single[:4].mean(0), single[4:].mean(0)])
    torch.testing.assert_close(tokens.x[0], expected, atol=1e-5, rtol=1e-5)


def test_texts_of_other_lengths_in_a_batch_change_nothing(run):
    model = dxn.load(run)
    texts = ["word1 word2 word3", "word4", " ".join(["word5"] * 9)]
    together = model.predict_proba(pd.DataFrame({"text": texts}))
    for text, (_, answer) in zip(texts, together.iterrows(), strict=True):
        alone = model.predict(text=text)["probabilities"]
        assert list(alone.values()) == pytest.approx(list(answer), abs=1e-5)


@pytest.mark.exhaustive
def test_the_exported_program_has_the_same_answers(run, tmp_path):
    # The export compares its answers with those of the model.
    assert main(["export", f"run={run}", f"output={tmp_path / 'out'}"]) == 0


def test_the_attention_is_drawn(run, tmp_path):
    sample = "input.text=word1 word2 word3 word4 word5"
    assert main(["attend", f"run={run}", sample, f"output={tmp_path}"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["head=language", "backbone.causal=true"], "needs one column per token"),
        (["head=masked"], "a masked text needs adapters.text.embedding.pool=1"),
        (["adapters.text.embedding.pool=0"], "embedding.pool: must be at least 1"),
    ],
)
def test_a_task_about_single_words_refuses_it(options, message, table, capsys):
    target = [] if "head=masked" in options or "head=language" in options else ["target=label"]
    chosen = [each for each in OPTIONS if each != "target=label"]
    lines = refused(capsys, ["train", table, *chosen, *target, *PLAIN, POOL, *options])
    assert message in lines[0]


@pytest.mark.parametrize(("seconds", "pool"), [(1e-9, 1), (1.1e-4, 2), (1.0, 8)])
def test_the_preset_pools_words_if_too_few_epochs_fit(seconds, pool, table, tmp_path, monkeypatch):
    monkeypatch.setattr("dxn.presets.preset.seconds_per_token", lambda *_: seconds)
    options = [*OPTIONS, "trainer.max_minutes=0.2", "baseline=none"]
    train(tmp_path / "run", table, *options)
    config = yaml.safe_load((tmp_path / "run" / ".hydra" / "config.yaml").read_text())
    assert config["adapters"]["text"]["embedding"]["pool"] == pool


def test_the_measurement_of_the_speed_does_not_change_the_weights(table, tmp_path, monkeypatch):
    options = [*OPTIONS, "trainer.max_minutes=100", "baseline=none"]
    measured = train(tmp_path / "measured", table, *options)
    monkeypatch.setattr("dxn.presets.preset.seconds_per_token", lambda *_: 1e-9)
    assert train(tmp_path / "known", table, *options)["test/loss"] == measured["test/loss"]
