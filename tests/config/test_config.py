"""Composition: every problem is named, all at once, before any data is read."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from dxn.commands import command
from dxn.commands.evaluate import Evaluate
from dxn.commands.predict import Generate, Predict
from dxn.commands.train import Train, settings_of_run
from dxn.config import signatures
from dxn.config.compose import compose, compositions
from dxn.config.settings import Settings, dump_yaml
from dxn.config.words import options, parse
from dxn.core.errors import UserError

BACKBONES = ", ".join(options("backbone"))
TABLE = ["data=table", "data.path=x.csv"]


def messages(call, *arguments, **named):
    with pytest.raises(UserError) as error:
        call(*arguments, **named)
    return str(error.value).splitlines()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["optimizer.lrr=1"], "optimizer.lrr: no such key; did you mean optimizer.lr?"),
        (["lr=1"], "lr: no such key; did you mean optimizer.lr?"),
        (
            ["backbone.norm.epss=1"],
            "backbone.norm.epss: no such key; did you mean backbone.norm.eps?",
        ),
        (
            ["data.target=x"],
            "data.target: no such key; data=hub or data=table or data=timeline has it",
        ),
        (
            ["data.path="],
            "data.path: no such key; data=annotated or data=folder or data=grid has it",
        ),
        (["loss=focal"], "loss: no such key; dxn show prints all keys"),
        (["+trainer.foo=1"], "trainer.foo: no such key; dxn show prints all keys"),
        (["trainer.lr=1"], "trainer.lr: no such key; did you mean optimizer.lr?"),
        (["trainer.epochs=3", "batchsize=3"], "batchsize: no such key; did you mean batch_size?"),
        (
            ["head.threshold=1"],
            "head.threshold: no such key; head=detect or head=multilabel or head=segment has it",
        ),
        (["pretrain.epochs=3"], "pretrain.epochs: no such key;"),
        (["+foo=1"], "foo: no such key;"),
        (["~seed"], "~seed: a key cannot be deleted; set it to null"),
        (
            ["backbone=tny"],
            f"backbone=tny: no such option; did you mean tiny? options: {BACKBONES}",
        ),
        (
            ["adapters=[text,smell]"],
            "adapters=smell: no such option; options: audio, ",
        ),
        (
            ["adapters=text,image"],
            "adapters=text,image: no such option; a list is written adapters=[text,image];",
        ),
        (["optimizer=null"], "optimizer=null: cannot be left out; options: adamw"),
        (["optimizer.lr=fast"], "optimizer.lr: must be a number, got 'fast'"),
        (["trainer.epochs=1.5"], "trainer.epochs: must be a whole number, got 1.5"),
        (["trainer.epochs=[1"], "trainer.epochs: must be a whole number, got '[1'"),
        (["head.balance=3"], "head.balance: must be one of none, root, inverse, got 3"),
        (["report=3"], "report: must be true or false, got 3"),
        (["seed=1,2"], "seed: must be a whole number, got '1,2'"),
        (["trainer.device=gpu"], "trainer.device: must be one of auto, cpu, cuda, mps, got 'gpu'"),
        (
            ["trainer.device=cdua"],
            "trainer.device: must be one of auto, cpu, cuda, mps, got 'cdua'; ",
        ),
        (
            ["backbone.block.mlp=glu"],
            "backbone.block.mlp: must be one of gelu, gelu_tanh, quick_gelu, relu, silu, swiglu, "
            "geglu, geglu_tanh, got 'glu'; did you mean",
        ),
        (
            ["data=table", "data.path=x.csv", "data.fractions=2"],
            "data.fractions: must be a list",
        ),
        (["adapters.text.norm=true"], "adapters.text.norm: must be EmbeddingNormOptions or null"),
        (["data=folder"], "data.path: needs a value, data.path=..."),
        (["~/seed=1"], "~/seed=1: not an override; write key=value"),
        (["xyzzy=3"], "xyzzy: no such key; dxn show prints all keys"),
        (["dim=${nothing}"], "dim: Interpolation key 'nothing' not found"),
        (["input.text=x"], "input.text: no such key;"),
        (["conf_dir=nowhere"], "conf_dir: folder not found: "),
        (["trainer.max_minutes=1e400"], "trainer.max_minutes: must be a finite number, got inf"),
        (["backbone.dropout=nan"], "backbone.dropout: must be a finite number, got nan"),
        (
            ["data=table", "data.path=x.csv", "data.fractions=[0.8,nan,0.1]"],
            "data.fractions: must all be finite numbers, got [0.8, nan, 0.1]",
        ),
        (["resume.force=true"], "resume.force: has an effect only together with resume=RUN"),
        (["backbone=[tiny,small]"], f"backbone: must be one of {BACKBONES}, got ['tiny', 'small']"),
        (["data.größe="], "data.größe: no such key; dxn show prints all keys"),
        (["größe=3"], "größe: no such key; dxn show prints all keys"),
        (["head._target_=os.system"], "head: os.system does not belong to dxn"),
        (["head._target_=dxn.tasks.torch.load"], "head: dxn has no part dxn.tasks.torch.load"),
    ],
)
def test_a_wrong_override_is_named_with_what_was_probably_meant(overrides, expected):
    assert any(line.startswith(expected) for line in messages(compose, Train, overrides))


@pytest.mark.parametrize("wrong", ["loss=focal", "trainer.foo=1", "trainer.device=gpu", "zzz=1"])
def test_nothing_is_suggested_if_no_name_is_similar(wrong):
    assert "did you mean" not in messages(compose, Train, [wrong])[0]


def test_all_problems_are_listed_at_once():
    wrong = ["optimizer.lrr=1", "backbone=tny", "trainer.epoch=3", "seed=x", "~seed"]
    assert len(messages(compose, Train, wrong)) == 5


@pytest.mark.parametrize(
    ("verb", "overrides", "expected"),
    [
        ("predict", ["run=r", "input=x", "batch_size=abc"], "batch_size: must be a whole number"),
        ("predict", ["run=r", "input=x", "device=gpu"], "device: must be one of auto, cpu"),
        ("predict", ["run=r"], "input: needs a value, input=..."),
        ("predict", ["backbone=small"], "backbone: no such key; dxn predict --help lists all keys"),
        ("evaluate", ["run=r", "split=all"], "split: must be one of train, validation, test"),
        ("generate", ["run=r", "top_k=0.5"], "top_k: must be a whole number or null, got 0.5"),
    ],
)
def test_the_keys_of_every_verb_are_checked(verb, overrides, expected):
    assert any(line.startswith(expected) for line in messages(compose, command(verb), overrides))


@pytest.mark.parametrize("verb", ["train", "show"])
def test_an_optional_group_can_be_left_out_by_name(verb):
    assert (
        compose(command(verb), ["debug=null", "experiment=null"]).values
        == compose(command(verb)).values
    )


def test_a_size_sets_the_width_of_every_part():
    values = compose(Train, ["backbone=tiny"]).values
    parts = [values["backbone"], values["fusion"], *values["adapters"].values()]
    assert {part["dim"] for part in parts} == {192}


def test_a_number_is_defined_once():
    values = compose(Train, ["seed=7", "batch_size=13"]).values
    trainer = values["trainer"]
    assert (values["data"]["seed"], trainer["seed"], trainer["batch_size"]) == (7, 7, 13)


def test_only_the_chosen_adapters_are_there():
    assert list(compose(Train, ["adapters=[image]"]).values["adapters"]) == ["image"]


def test_stored_files_are_what_hydra_composes(stored_signatures):
    stored = signatures.read().composed
    composed = compositions([Train, Evaluate])
    assert "train data=table" in composed
    assert {name: dump_yaml(stored[name]) for name in composed} == {
        name: dump_yaml(values) for name, values in composed.items()
    }


@pytest.mark.parametrize(
    "value",
    [
        "a",
        "/a-b/c.d_1",
        "a.",
        "in-f",
        "Nullx",
        "0",
        "12",
        "0.50",
        "10.5",
        "12a",
        "01",
        "1.",
        "TRUE",
    ],
)
def test_plain_words_have_the_values_of_hydras_grammar(value):
    expected = OverridesParser.create().parse_override(f"run={value}")
    (override,) = parse(Train, [f"run={value}"]).values
    assert (override.value, type(override.value)) == (expected.value(), type(expected.value()))


def test_defaults_of_signatures_are_filled_in():
    block = compose(Train).values["backbone"]["block"]
    assert (block["mlp"], block["qk_norm"]) == ("gelu", False)


def test_a_key_that_only_the_signature_knows_can_be_set():
    values = compose(Train, ["backbone.norm.eps=1e-6", "adapters.text.norm.bias=false"]).values
    assert values["backbone"]["norm"]["eps"] == 1e-6
    assert values["adapters"]["text"]["norm"]["bias"] is False


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("data.holdout.speaker=theo", ("data", "holdout"), {"speaker": "theo"}),
        ("data.holdout.größe=12", ("data", "holdout"), {"größe": 12}),
        ("data.holdout.shoe size (cm)=a,b", ("data", "holdout"), {"shoe size (cm)": "a,b"}),
        ("weights.adapters.image=PATH", ("weights", "adapters"), {"image": "PATH"}),
        ("data.text=[title,body]", ("data", "text"), ["title", "body"]),
        ("data.image=photo", ("data", "image"), "photo"),
        ("data.target=2024", ("data", "target"), "2024"),
        ("data.target=[a,b]", ("data", "target"), ["a", "b"]),
        ("weights=a=b,c", ("weights", "source"), "a=b,c"),
    ],
)
def test_keys_of_the_users_choice_are_accepted(override, path, value):
    found = compose(Train, [*TABLE, override]).values
    for name in path:
        found = found[name]
    assert found == value


def test_the_ratio_of_every_input_can_be_set():
    values = compose(Train, ["head=masked", "head.mask_ratio.text=0.2"]).values
    assert values["head"]["mask_ratio"] == {"text": 0.2}
    wrong = messages(compose, Train, ["head=masked", "head.mask_ratio.text=a"])
    assert wrong[0].startswith("head.mask_ratio: must be a mapping")


def test_a_column_needs_an_adapter_that_reads_it():
    wrong = messages(compose, Train, [*TABLE, "adapters=[text]", "data.image=photo"])
    assert wrong[0].startswith("data.image: no such key")


@pytest.mark.parametrize(
    "text", ["42", "true", "null", "100% ${HOME} blue", "[a, b]", 'say "so"', "a=b", "", "'x"]
)
def test_an_input_is_kept_as_it_was_typed(text):
    values = compose(Predict, ["run=r", f"input.text={text}"]).values
    assert values["input"] == {"text": text}
    assert compose(Predict, ["run=r", f"input={text}"]).values["input"] == text
    assert compose(Generate, ["run=r", f"prompt={text}"]).values["prompt"] == text


@pytest.mark.parametrize(
    "path",
    ["my file.csv", "it's.csv", "a,b.csv", "x[1](2).csv", 'say "so".csv', "back\\slash.csv", "a=b"],
)
def test_a_path_needs_no_quotes(path):
    assert compose(Train, ["data=table", f"data.path={path}"]).values["data"]["path"] == path


# Short forms


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, which is the current folder and the home folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def data_of(*words, verb="train"):
    return compose(command(verb), words).values["data"]


def test_a_path_without_a_key_is_the_data_of_a_training(here):
    (here / "photos" / "cat").mkdir(parents=True)
    (here / "notes.txt").write_text("some text")
    assert data_of("reviews.csv", "target=label") == data_of(
        "data=table", "data.path=reviews.csv", "data.target=label"
    )
    assert data_of("photos/", verb="show") == data_of("data=folder", "data.path=photos/")
    assert data_of("notes.txt", verb="check")["_target_"] == "dxn.data.text_files"


def test_a_path_without_a_key_is_the_input_of_a_model():
    for verb in ("evaluate", "predict", "embed", "attend", "tokenize"):
        assert compose(command(verb), ["my photo (1).jpg"]).values["input"] == "my photo (1).jpg"


def test_several_tables_are_one_data_set(here):
    assert data_of("a,b.csv", "c.csv")["path"] == ["a,b.csv", "c.csv"]
    assert data_of("data.path=[a.csv,b.csv]")["_target_"] == "dxn.data.table"


@pytest.mark.parametrize(
    ("verb", "words", "expected"),
    [
        ("generate", ["a.txt"], "a.txt: dxn generate takes no path; options are written key=value"),
        ("serve", ["./"], "./: dxn serve takes no path; write run=./"),
        ("neighbors", ["king"], "king: dxn neighbors takes no path"),
        ("predict", ["a.jpg", "b.jpg"], "b.jpg: dxn predict takes one path, got 2; put a pattern"),
        ("embed", ["target=x", "input=x"], "data.target: no such key"),
        ("train", ["a.csv", "data.path=b.csv"], "data.path: must be one value, got a.csv and data"),
        ("predict", ["run=RUN", "a.csv", "input=b.csv"], "input: must be one value, got a.csv and"),
    ],
)
def test_a_path_that_a_command_cannot_use_is_refused(verb, words, expected):
    assert messages(compose, command(verb), words)[0].startswith(expected)


def test_the_data_source_is_inferred_unless_it_is_chosen(here):
    assert data_of("data.train=a.csv", "data.test=b.csv")["_target_"] == "dxn.data.table"
    assert data_of("a.csv", "data=text")["_target_"] == "dxn.data.text_files"
    chosen = compose(Train, ["experiment=trec", "data.path=anything"])
    assert chosen.values["data"]["_target_"] == "dxn.data.table"
    assert "data" in compose(Train, ["a.csv"]).chosen
    assert compose(Train, ["a.csv", "resume=null"]).values["data"]["path"] == "a.csv"
    assert compose(Evaluate, ["run=r", "data.path=a.csv"]).values["data"]["path"] == "a.csv"


def test_the_home_folder_is_expanded_in_paths(here):
    (here / "a.jpg").touch()
    home = str(here)
    train = compose(Train, ["~/a.csv", "output=~/runs", "weights.adapters.text=~/w"]).values
    assert train["data"]["path"] == f"{home}/a.csv"
    assert (train["output"], train["weights"]["adapters"]["text"]) == (f"{home}/runs", f"{home}/w")
    assert data_of("~/a.csv", "~/b.csv")["path"] == [f"{home}/a.csv", f"{home}/b.csv"]
    option = compose(Train, ["adapters.text.embedding.path=~/vectors.txt"]).values
    assert option["adapters"]["text"]["embedding"]["path"] == f"{home}/vectors.txt"
    sample = compose(Predict, ["run=~/r", "input.image=~/a.jpg", "input.text=~/x"]).values
    assert sample["run"] == f"{home}/r"
    assert sample["input"] == {"image": f"{home}/a.jpg", "text": "~/x"}


def test_columns_of_a_new_table_are_keys_of_the_users_choice():
    words = ["run=r", "new.csv", "columns.title=name", "keep=[id]", "sep=;", "encoding=cp1252"]
    values = compose(Predict, words).values
    assert (values["columns"], values["keep"]) == ({"title": "name"}, ["id"])
    assert (values["sep"], values["encoding"]) == (";", "cp1252")


def test_a_mapping_changes_only_the_keys_that_it_contains():
    backbone = compose(Train, ["backbone={dropout: 0.5, norm: {eps: 0.1}}"]).values["backbone"]
    assert (backbone["dropout"], backbone["norm"]["eps"], backbone["depth"]) == (0.5, 0.1, 4)


def test_an_override_is_stronger_than_the_experiment():
    settings = compose(Train, ["experiment=trec", "data.path=x", "optimizer.lr=0.25"])
    assert settings.values["optimizer"]["lr"] == 0.25


def test_what_the_user_and_the_experiment_chose_is_known():
    settings = compose(Train, ["experiment=fashion_type", "data.path=x", "seed=3"])
    assert {"seed", "data.path", "experiment", "data", "data.target"} <= settings.chosen
    assert {"trainer.epochs", "adapters.text.tokenizer.kind"} <= settings.chosen
    assert "backbone.depth" not in settings.chosen


def test_a_mapping_chooses_only_the_keys_that_it_contains():
    chosen = compose(Train, ["trainer={epochs: 3}", "optimizer={lr: 0.1}"]).chosen
    assert chosen == {"trainer.epochs", "optimizer.lr"}


def test_the_decoder_is_shaped_like_the_encoder_if_that_is_a_transformer():
    for backbone, heads in (("tiny", 6), ("gru", 4)):
        values = compose(Train, [f"backbone={backbone}", "head=generate"]).values
        assert values["head"]["decoder"]["backbone"]["num_heads"] == heads


# The user's own files

TOY = """
class Smell:
    modality = "smell"
    def __init__(self, dim: int, *, strength: float = 1.0):
        self.dim = dim

def make(x: int = 1):
    return x
"""
SMELL = "smell:\n  _target_: toy_smell.Smell\n  dim: ${dim}\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A user's project: conf/adapters/smell.yaml next to a module that is not installed."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "toy_smell.py").write_text(TOY)
    (tmp_path / "conf" / "adapters").mkdir(parents=True)
    (tmp_path / "conf" / "adapters" / "smell.yaml").write_text(SMELL)
    yield tmp_path
    sys.modules.pop("toy_smell", None)


def test_a_folder_of_the_user_adds_an_adapter_and_is_trusted(project):
    overrides = [f"conf_dir={project / 'conf'}", "adapters=[text,smell]"]
    chosen = ["adapters.smell.strength=2", *TABLE, "data.smell=nose"]
    settings = compose(Train, [*overrides, *chosen])
    smell = settings.values["adapters"]["smell"]
    assert smell == {"_target_": "toy_smell.Smell", "dim": 128, "strength": 2}
    assert settings.values["data"]["smell"] == "nose"
    assert settings.trust == ("toy_smell",)


def test_several_folders_can_be_given(project, tmp_path):
    second = tmp_path / "more (2)" / "conf"
    (second / "experiment").mkdir(parents=True)
    (second / "experiment" / "mine.yaml").write_text("# @package _global_\nname: mine\n")
    folders = [f"conf_dir={project / 'conf'}", f"conf_dir={second}"]
    settings = compose(Train, [*folders, "adapters=[smell]", "experiment=mine"])
    assert settings.values["name"] == "mine"


def test_a_file_that_dxn_has_too_is_refused(project):
    (project / "conf" / "adapters" / "text.yaml").write_text(SMELL)
    wrong = messages(compose, Train, [f"conf_dir={project / 'conf'}"])
    assert "dxn already has a file adapters/text.yaml; rename yours" in wrong[0]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("dim: [1\n", "mine.yaml: not valid YAML: "),
        ("- dim\n", "mine.yaml: must be a mapping, got list"),
        ("defaults: [nothing, _self_]\n", "Could not load 'experiment/nothing'"),
    ],
)
def test_a_damaged_experiment_of_the_user_is_named(project, content, expected):
    folder = project / "conf" / "experiment"
    folder.mkdir()
    (folder / "mine.yaml").write_text(content)
    words = [f"conf_dir={project / 'conf'}", "experiment=mine"]
    assert expected in messages(compose, Train, words)[0]


def test_a_file_of_the_user_that_is_not_utf_8_is_named(project):
    folder = project / "conf"
    (folder / "experiment").mkdir()
    (folder / "experiment" / "mine.yaml").write_bytes("name: café\n".encode("latin-1"))
    wrong = messages(compose, Train, [f"conf_dir={folder}"])
    assert "mine.yaml: not valid YAML: 'utf-8' codec can't decode byte 0xe9" in wrong[0]


@pytest.mark.parametrize(
    "word",
    ["adapters.text=3", "adapters.text=null", "adapters={text: [1]}", "adapters={a: {b: 1}}"],
)
def test_an_adapter_is_a_mapping_with_a_class(word):
    (line,) = messages(compose, Train, [word])
    assert "must be a mapping with a _target_, got" in line


def test_an_empty_experiment_sets_nothing(project):
    (project / "conf" / "experiment").mkdir()
    (project / "conf" / "experiment" / "mine.yaml").write_text("")
    settings = compose(
        Train, [f"conf_dir={project / 'conf'}", "experiment=mine", "adapters=[text]"]
    )
    assert settings.values["dim"] == compose(Train, ["adapters=[text]"]).values["dim"]


def test_a_damaged_file_of_a_group_is_named(project):
    (project / "conf" / "head").mkdir()
    (project / "conf" / "head" / "mine.yaml").write_text("_target_: [1\n")
    wrong = messages(compose, Train, [f"conf_dir={project / 'conf'}", "head=mine"])
    assert "conf/head/mine.yaml" in wrong[0]


def test_an_installed_package_adds_files_by_an_entry_point(project, monkeypatch):
    class Entry:
        name, value = "toy", "toy_smell"

    monkeypatch.syspath_prepend(str(project))
    monkeypatch.setattr("dxn.config.words.entry_points", lambda group: [Entry])
    values = compose(Train, ["adapters=[smell]"]).values
    assert values["adapters"]["smell"]["_target_"] == "toy_smell.Smell"


def test_a_target_that_is_typed_needs_trust(project, monkeypatch):
    monkeypatch.syspath_prepend(str(project))
    typed = ["adapters=[text]", "adapters.text={_target_: toy_smell.Smell, dim: 7}"]
    assert "add trust=[toy_smell]" in messages(compose, Train, typed)[0]


# A saved run


@pytest.fixture
def run(tmp_path):
    settings = compose(Train, ["seed=11", "adapters=[image]", *TABLE, "data.holdout.who=ann"])
    settings.save(tmp_path)
    return tmp_path


def edit(run, change):
    path = run / ".hydra" / "config.yaml"
    values = yaml.safe_load(path.read_text())
    change(values)
    path.write_text(yaml.safe_dump(values))


def test_a_run_is_read_as_it_was_saved(run):
    again = settings_of_run(run)
    composed = compose(Train, again.overrides)
    assert again.values == composed.values


def test_values_of_a_run_can_be_changed(run):
    lines = ["trainer.epochs=30", "batch_size=5", "data.holdout.who=bob", "data.path=2024"]
    values = settings_of_run(run, lines).values
    assert values["trainer"]["epochs"] == 30
    assert (values["batch_size"], values["trainer"]["batch_size"]) == (5, 5)
    assert (values["data"]["holdout"], values["data"]["path"]) == ({"who": "bob"}, "2024")
    before = settings_of_run(run).values["trainer"]
    changed = settings_of_run(run, ["trainer={epochs: 30}"])
    assert changed.values["trainer"] == {**before, "epochs": 30}
    assert changed.chosen == {"trainer.epochs"}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("backbone=small", "backbone=small: the parts of a saved run cannot be changed"),
        ("seed=3", "seed: cannot be changed in a saved run; train a new run"),
        ("trainer.epoch=3", "trainer.epoch: no such key; did you mean trainer.epochs?"),
        ("trainer.epochs=x", "trainer.epochs: must be a whole number, got 'x'"),
    ],
)
def test_a_wrong_change_of_a_run_is_named(run, override, expected):
    assert messages(settings_of_run, run, [override])[0].startswith(expected)


def test_resume_takes_the_saved_configuration(run):
    settings = compose(Train, [f"resume={run}", "trainer.epochs=30"])
    values = settings.values
    assert (values["resume"]["run"], values["run"]) == (str(run), str(run))
    assert (values["seed"], values["trainer"]["epochs"]) == (11, 30)


def test_resume_finds_the_newest_run_of_a_folder(run, tmp_path_factory, monkeypatch):
    parent = tmp_path_factory.mktemp("outputs")
    for i, name in enumerate(("b", "c", "a")):
        (parent / "label" / name).mkdir(parents=True)
        shutil.copytree(run / ".hydra", parent / "label" / name / ".hydra")
        os.utime(parent / "label" / name / ".hydra" / "config.yaml", (i, i))
    settings = compose(Train, [f"resume={parent}"])
    assert settings.values["resume"]["run"] == str(parent / "label" / "a")
    assert settings.notes == (f"resume: {parent / 'label' / 'a'} (newest of 3)",)
    monkeypatch.chdir(parent.parent)
    monkeypatch.setattr("dxn.runs.folder.RUNS", Path(parent.name))
    assert compose(Train, ["resume=latest"]).values["run"] == f"{parent.name}/label/a"
    wrong = messages(compose, Train, [f"resume={parent.name}/lable"])
    assert f"did you mean {parent.name}/label?" in wrong[0]
    wrong = messages(compose, Train, ["resume=label"])
    assert f"did you mean {parent.name}/label?" in wrong[0]


def test_a_folder_without_a_run_is_named(tmp_path):
    expected = f"{tmp_path}: not a run folder, it has no .hydra/config.yaml"
    assert messages(settings_of_run, tmp_path) == [expected]


def test_a_strangers_run_cannot_name_code(run):
    edit(run, lambda values: values["data"].update(holdout={"_target_": "os.system"}))
    wrong = messages(settings_of_run, run)
    assert wrong[0].endswith("data.holdout: os.system does not belong to dxn and was not imported")


def test_a_strangers_run_cannot_read_the_environment(run, monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    edit(run, lambda values: values["data"].update(path="${oc.env:TOKEN}"))
    settings = settings_of_run(run, ["trainer.epochs=2"])
    assert settings.values["data"]["path"] == "${oc.env:TOKEN}"


def test_the_part_of_a_trusted_package_is_allowed_in_a_run(run, project, monkeypatch):
    monkeypatch.syspath_prepend(str(project))
    edit(run, lambda values: values["adapters"].update(smell={"_target_": "toy_smell.Smell"}))
    assert "add trust=[toy_smell]" in messages(settings_of_run, run)[0]
    assert settings_of_run(run, trust=["toy_smell"]).trust == ("toy_smell",)
    assert settings_of_run(run, ["trust=[toy_smell]"]).trust == ("toy_smell",)


def test_settings_survive_saving(tmp_path):
    shared = [1, 2]
    values = {**compose(Train).values, "a": shared, "b": shared, "name": "ü ${x}"}
    settings = Settings(values, ("k=v",))
    settings.save(tmp_path)
    again = Settings.load(tmp_path)
    assert (again.values, again.overrides) == (settings.values, settings.overrides)
