"""Options that another option makes meaningless are refused, if the command contains them."""

import pytest
from helpers.runs import SMALL, refused, table_of, train
from tokenizers import Tokenizer, models, pre_tokenizers

from dxn.commands import command
from dxn.config.values import refuse_without_effect
from dxn.core.errors import UserError

PATH = "adapters.text.tokenizer.path"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(table_of(40))
    words = {"[UNK]": 0, "[MASK]": 1, "apple": 2}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return path


@pytest.mark.parametrize(
    ("option", "other"),
    [
        ("adapters.text.tokenizer.kind=bpe", PATH),
        ("adapters.text.tokenizer.lowercase=true", PATH),
        ("adapters.text.vocab_size=50", PATH),
        ("head.hidden_dim=32", "head.hidden=none"),
        ("head.norm_eps=1e-6", "head.norm=false"),
        ("finetune.lora_targets=[mlp.up]", "finetune.lora_rank=0"),
        ("adapters.image.resize.crop_ratio=0.9", "adapters.image.resize.mode=within"),
        ("adapters.image.resize.pos_grid=[3,3]", "adapters.image.resize.mode=crop"),
        ("data.fractions=[0.5,0.3,0.2]", "data.split=part"),
        ("loader.repeats=3", "loader.overfit=8"),
        ("optimizer.new_lr=0.1", "weights=null"),
        ("adapters.text.augment.token_dropout=0.1", "loader.overfit=8"),
        ("loader.timeout=9", "loader.num_workers=0"),
        ("backbone.position.rope_theta=9", "backbone.position.kind=none"),
        ("backbone.position.num_buckets=9", "backbone.position.kind=none"),
        ("fusion.map.num_heads=2", "fusion.pool=mean"),
        ("fusion.late_blocks=2", "fusion.late_registers=0"),
        ("adapters.audio.patch.size=[8,8]", "adapters.audio.tokens=frames"),
        ("batch_size=8", "trainer.batch_size=9"),
    ],
)
def test_an_option_without_effect_is_refused(option, other, table, capsys):
    chosen = []
    if other == PATH:
        other = f"{PATH}={table.parent / 'tokenizer.json'}"
        chosen = [other]
    elif other.endswith(("crop", "=part", "=8", "=9", "workers=0")):
        chosen = [other]
    elif "hidden" in option:
        chosen = ["head=forecast", other]
    key, value = option.split("=")
    lines = refused(capsys, ["train", table, "target=label", *chosen, option])
    assert lines == [f"dxn: {key}: has no effect with {other}, got {value}; leave one of them out"]


def test_a_debug_run_accepts_the_options_of_the_training_that_it_checks():
    chosen = ["debug=fast", "loader.repeats=3", "adapters.text.augment.token_dropout=0.1"]
    refuse_without_effect(
        {"loader": {"overfit": 64, "repeats": 3}}, [*chosen, "loader.input_dropout=0.5"]
    )


def test_the_options_of_a_preset_do_not_name_a_tokenizer_that_is_not_trained(
    table, tmp_path, capsys
):
    chosen = [f"{PATH}={tmp_path / 'tokenizer.json'}", "trainer.epochs=1", "report=false"]
    train(tmp_path / "run", str(table), "target=label", *SMALL, *chosen, "baseline=none")
    printed = capsys.readouterr().out
    assert "preset: " in printed and "tokenizer.kind" not in printed


def test_options_of_a_tokenizer_that_is_trained_are_accepted(table, tmp_path):
    chosen = ["adapters.text.tokenizer.kind=word", "adapters.text.vocab_size=50", "report=false"]
    chosen += ["head.norm=true", "head.norm_eps=1e-6", "trainer.epochs=1", "baseline=none"]
    train(tmp_path / "run", str(table), "target=label", "head=classify", *SMALL, *chosen)


@pytest.mark.parametrize(
    ("words", "option", "sentence"),
    [
        (
            "predict input.text=a weights.part=x",
            "weights.part",
            "an effect only with weights",
        ),
        ("predict input.text=a ray.replicas=2", "ray.replicas", "an effect only with engine=ray"),
        ("serve template=x{}", "template", "an effect only with labels"),
        ("evaluate input=t.csv split=test", "split", "no effect with input=t.csv"),
        ("evaluate guidance=2", "guidance", "an effect only with create"),
        ("evaluate input=t.csv data.path=c.csv", "data.path", "no effect with input=t.csv"),
        ("tokenize run=r adapters=[image] input.text=a", "adapters", "no effect with run=r"),
        ("index input=t.csv seed=3", "seed", "an effect only with data"),
        ("evaluate seed=3", "seed", "an effect only with data or create"),
        ("export weights.part=text", "weights.part", "an effect only with weights"),
        ("export format=public baseline=none", "baseline", "no effect with format=public"),
        ("tokenize run=r dim=3 input.text=a", "dim", "no effect with run=r"),
        ("train weights.revision=main", "weights.revision", "an effect only with weights"),
        (
            "train weights.strict=false",
            "weights.strict",
            "an effect only with weights or weights.adapters",
        ),
        ("tokenize input.text=a sep=;", "sep", "an effect only with run"),
        ("generate temperature=0 top_k=3", "top_k", "no effect with temperature=0"),
        ("generate temperature=0.0 top_p=0.3", "top_p", "no effect with temperature=0"),
    ],
)
def test_an_option_of_a_command_that_has_no_effect_is_refused(words, option, sentence):
    verb, *rest = words.split()
    (problem,) = command(verb).compose(rest).without_effect()
    start, got, advice = problem.partition(", got ")
    assert start == f"{option}: has {sentence}"
    assert got and advice.endswith(("; leave it out", "; leave one out"))


def test_options_with_an_effect_are_accepted():
    words = ["create=image", "guidance=2", "weights=folder", "weights.part=text", "split=test"]
    assert command("evaluate").compose(words).without_effect() == []
    assert command("generate").compose(["temperature=0.5", "top_k=3"]).without_effect() == []
    words = ["weights.adapters.image=folder", "weights.strict=false"]
    assert command("train").compose(words).without_effect() == []


def test_options_of_an_experiment_may_have_no_effect(tmp_path):
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\nweights:\n  source: folder\n  revision: main\n"
    (tmp_path / "experiment" / "tuned.yaml").write_text(text)
    words = [f"conf_dir={tmp_path}", "experiment=tuned", "weights=null"]
    assert command("train").compose(words).without_effect() == []


@pytest.mark.parametrize("option", ["keep=[a]", "sep=x", "columns.text=b", "on_bad=skip"])
def test_options_of_tables_are_refused_for_one_sample(option):
    predict = command("predict").compose(["run=r", "input.text=a", option])
    name = option.partition("=")[0]
    with pytest.raises(UserError, match=rf"^{name}: has no effect on one sample; leave it out$"):
        predict.has_many_rows()
