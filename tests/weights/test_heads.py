"""The class in config.json decides what a checkpoint of transformers answers."""

import json

import pytest
import torch
import transformers as T
from helpers.checkpoints import change_tensors
from helpers.reference import save_words

import dxn
from dxn.cli import main
from dxn.core.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
SIZES = {
    "vocab_size": 53,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "initializer_range": 1.0,
    "pad_token_id": 0,
}
SMALL = {"vocab_size": 53, "dim": 12, "n_layers": 2, "n_heads": 2, "hidden_dim": 20}
CONFIGS = {
    "DistilBert": {**SMALL, "initializer_range": 1.0},
    "Qwen2": {**SIZES, "num_key_value_heads": 2},
}
TAGS = ["O", "B-place", "I-place"]
TEXT = "w5 w7 w11 w5"


def save(name, task, folder, **config):
    """A random model of a class such as BertForTokenClassification, in evaluation mode."""
    torch.manual_seed(0)
    options = {**CONFIGS.get(name, SIZES), **config}
    model = getattr(T, f"{name}For{task}")(getattr(T, f"{name}Config")(**options))
    model.save_pretrained(folder)
    save_words(folder, SIZES["vocab_size"])
    return model.eval()


@torch.inference_mode()
def logits_of(model, ours, text=TEXT):
    ids = ours.tokenizers["text"](text)["ids"]
    return model(ids[None]).logits[0]


@pytest.mark.parametrize("name", ["Bert", "DistilBert", "Roberta", "ModernBert", "Llama", "Qwen2"])
def test_a_classifier_of_tokens_tags_the_words(name, tmp_path):
    model = save(name, "TokenClassification", tmp_path, id2label=dict(enumerate(TAGS)))
    ours = dxn.from_public(str(tmp_path))
    expected = logits_of(model, ours).softmax(-1).max(-1)
    answer = ours.predict(text=TEXT)
    assert answer["words"] == TEXT.split()
    assert answer["prediction"] == [TAGS[i] for i in expected.indices.tolist()]
    scores = ours.task.predict(ours.model.head, *outputs_of(ours))[0].scores
    torch.testing.assert_close(torch.tensor(scores), expected.values, rtol=0, atol=1e-5)


def outputs_of(ours):
    samples = ours._samples(None, {"text": TEXT})
    batch = samples.collate([samples[0, 0]])
    with torch.inference_mode():
        return ours.model(batch), batch


@pytest.mark.parametrize(
    ("name", "task"),
    [
        *[(name, "MultipleChoice") for name in ("Bert", "DistilBert", "Roberta", "ModernBert")],
        *[(name, "QuestionAnswering") for name in ("ModernBert", "Llama", "Qwen2")],
    ],
)
def test_a_head_that_dxn_does_not_have_is_refused_by_its_name(name, task, tmp_path):
    save(name, task, tmp_path)
    with pytest.raises(UserError, match=f"does not support the class {name}For{task} "):
        dxn.from_public(str(tmp_path))


def test_without_a_class_a_classifier_is_neither_for_texts_nor_for_tokens(tmp_path):
    save("Bert", "TokenClassification", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": None}))
    with pytest.raises(UserError, match=r"config\.json must have architectures, such as"):
        dxn.from_public(str(tmp_path))


def test_a_checkpoint_without_a_layer_of_its_head_is_trained_but_gives_no_answers(tmp_path):
    folder = tmp_path / "model"
    save("DistilBert", "SequenceClassification", folder)
    change_tensors(folder, **{"pre_classifier.weight": None})
    with pytest.raises(UserError, match=r"has no layers for head\.pre\.dense\.weight"):
        dxn.from_public(str(folder))
    data = tmp_path / "rows.json"
    data.write_text(json.dumps([{"text": f"w{i} {TEXT}", "label": i % 2} for i in range(20)]))
    options = ["trainer.epochs=1", "report=false", f"run={tmp_path / 'run'}"]
    assert main(["train", str(data), f"weights={folder}", "target=label", *options]) == 0


PROBLEMS = [
    ("multilabel", {"num_labels": 3, "problem_type": "multi_label_classification"}),
    ("regress", {"num_labels": 1, "problem_type": "regression"}),
    ("regress", {"num_labels": 1}),
    ("classify", {"num_labels": 3, "problem_type": "single_label_classification"}),
]


@pytest.mark.parametrize("name", ["Bert", "Llama"])
@pytest.mark.parametrize(("task", "config"), PROBLEMS)
def test_the_problem_type_decides_how_the_outputs_are_read(name, task, config, tmp_path):
    model = save(name, "SequenceClassification", tmp_path, **config)
    ours = dxn.from_public(str(tmp_path))
    logits = logits_of(model, ours)
    answer = ours.predict(text=TEXT)
    assert ours.task.name == task
    if task == "regress":
        assert answer["prediction"] == pytest.approx(float(logits), abs=1e-4)
        return
    shares = logits.sigmoid() if task == "multilabel" else logits.softmax(-1)
    assert list(answer["probabilities"].values()) == pytest.approx(shares.tolist(), abs=1e-5)


def test_several_numbers_of_a_sample_are_refused(tmp_path):
    save("Bert", "SequenceClassification", tmp_path, num_labels=3, problem_type="regression")
    with pytest.raises(UserError, match="does not support 3 numbers of one sample"):
        dxn.from_public(str(tmp_path))


def test_a_reranker_has_no_row_of_the_mean_of_an_unknown_training(tmp_path, capsys):
    save("Bert", "SequenceClassification", tmp_path / "bert", num_labels=1)
    data = tmp_path / "rows.json"
    data.write_text(json.dumps([{"text": TEXT, "score": i / 2} for i in range(4)]))
    command = ["evaluate", f"weights={tmp_path / 'bert'}", f"output={tmp_path / 'out'}"]
    assert main([*command, f"data.path={data}", "data.target=score"]) == 0
    assert "always" not in capsys.readouterr().out


def test_a_checkpoint_is_exported(tmp_path):
    save("Bert", "SequenceClassification", tmp_path / "bert", num_labels=3)
    command = ["export", f"weights={tmp_path / 'bert'}", "format=torch"]
    assert main([*command, f"output={tmp_path / 'graph'}"]) == 0
    about = json.loads((tmp_path / "graph" / "preprocess.json").read_text())
    assert about["outputs"]["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]
