"""Composition that cannot fail silently: every fault named, all at once, before any data is read."""

import pytest

from dxn.config import build, compose, expand, options, saved_overrides
from dxn.errors import UserError

BACKBONES = ", ".join(options("backbone"))

TABLE = ["data=table", "data.path=x.csv"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optimizer.lrr=1"], "optimizer.lrr: no such key; did you mean optimizer.lr?"),
        (["lr=1"], "lr: no such key; did you mean optimizer.lr?"),
        (["adapters.text.tokens=patches"], "adapters.text.tokens: no such key; did you mean adapters.audio.tokens?"),
        (["backbone=tny"], f"backbone=tny: no such option; did you mean tiny? options: {BACKBONES}"),
        (["adapters=[text,video]"], "adapters=video: no such option; options: audio, image, text"),
        (["optimizer=null"], "optimizer=None: no such option; options: adamw"),
        (["optimizer.lr=fast"], "optimizer.lr: must be a number, got 'fast'"),
        (["trainer.epochs=1.5"], "trainer.epochs: must be a whole number, got 1.5"),
        (["trainer.balance=3"], "trainer.balance: must be true or false, got 3"),
        (
            ["backbone.mlp=glu"],
            "backbone.mlp: must be one of gelu, gelu_tanh, quick_gelu, swiglu, geglu, got 'glu'; did you mean gelu?",
        ),
        (["adapters.text.ngrams=2"], "adapters.text.ngrams: must be a list, got 2"),
        (["data=folder"], "data.path: needs a value, data.path=..."),
        (["data.path"], "data.path: not an override; write key=value"),
        (["trainer.epochs=[1"], "trainer.epochs: must be a whole number, got '[1'"),
        (["seed=1,2"], "trainer.seed: must be a whole number, got '1,2'"),
        (["xyzzy=3"], "xyzzy: no such key; dxn show prints them all"),
    ],
)
def test_a_wrong_override_is_named_with_what_was_meant(overrides, message):
    with pytest.raises(UserError) as error:
        compose("train", overrides)
    assert message in str(error.value).splitlines()


def test_an_optional_group_may_be_left_out_by_name():
    for verb in ("train", "show"):
        assert compose(verb, ["debug=null", "experiment=null"]).plain() == compose(verb).plain()


def test_all_faults_are_listed_at_once():
    with pytest.raises(UserError) as error:
        compose("train", ["optimizer.lrr=1", "backbone=tny", "trainer.epoch=3"])
    assert len(str(error.value).splitlines()) == 3


def test_a_size_sets_the_width_of_every_part():
    config = compose("train", ["backbone=tiny"]).plain()
    parts = [config["backbone"], config["head"], config["fusion"], *config["adapters"].values()]
    assert [part["dim"] for part in parts] == [192] * 6


def test_numbers_live_once():
    config = compose("train", ["seed=7", "batch_size=13"]).plain()
    assert (config["data"]["seed"], config["trainer"]["seed"], config["trainer"]["batch_size"]) == (7, 7, 13)


def test_a_value_below_an_empty_key_may_be_new():
    config = compose("train", [*TABLE, "data.holdout.speaker=theo"]).plain()
    assert config["data"]["holdout"] == {"speaker": "theo"}


@pytest.mark.parametrize(
    "value",
    ["my file.csv", "it's.csv", "a,b.csv", "x[1](2).csv", 'say "so".csv', "back\\slash.csv", "a=b.csv"],
)
def test_a_path_needs_no_quotes(value):
    assert compose("train", ["data=table", f"data.path={value}"]).plain()["data"]["path"] == value


def test_an_override_beats_the_experiment():
    config = compose("train", ["experiment=trec", "data.path=x", "optimizer.lr=0.25"]).plain()
    assert config["optimizer"]["lr"] == 0.25


def test_a_sweep_is_every_combination_in_order():
    assert expand(["seed=1,2", "dim=64", "backbone=nano,tiny"]) == [
        [f"seed={seed}", "dim=64", f"backbone={size}"] for seed in (1, 2) for size in ("nano", "tiny")
    ]


def test_what_was_composed_can_be_composed_again(tmp_path):
    config = compose("train", ["seed=11", "adapters=[image]", "data.path=it's [1].csv", "data=table"])
    config.save(tmp_path)
    again = compose("train", saved_overrides(tmp_path))
    assert again.plain() == config.plain()


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(UserError, match="not a run folder"):
        saved_overrides(tmp_path)


def test_a_constructors_complaint_names_the_key():
    node = compose("train", ["backbone.num_heads=3"]).plain()["backbone"]
    with pytest.raises(UserError, match=r"^backbone: dim must be a multiple of num_heads, got 128 and 3$"):
        build(node, key="backbone")
