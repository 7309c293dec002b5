"""The tokens of a vocabulary whose embeddings are close to that of one token."""

import pytest
import torch
import torch.nn.functional as F

from dxn.cli import main
from dxn.config.model_plan import ModelPlan
from dxn.core.errors import UserError
from dxn.runs.build import build_model
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.saved import model_folder
from dxn.tasks import Classify
from dxn.tokenize import ImageAdapter, TextAdapter, TokenizerOptions

TEXTS = ["the king and the queen", "a dog saw the king", "the queen fed a dog"] * 3


NODES = {
    "fusion": {"_target_": "dxn.models.EarlyFusion", "dim": 4},
    "backbone": {"_target_": "dxn.models.Backbone", "dim": 4, "depth": 1, "num_heads": 2},
}


def plan_of(name, adapter):
    inputs = {name: {"modality": name, "column": name, "adapter": name}}
    head = {"_target_": "dxn.tasks.Classify"}
    content = {"inputs": inputs, "adapters": {name: adapter}, "head": head, **NODES}
    return ModelPlan.model_validate(content)


def predictor_of(adapter):
    task = Classify()
    task.target.fit(["a", "b"])
    name = adapter.modality
    plan = plan_of(name, {"_target_": f"dxn.tokenize.{type(adapter).__name__}", "dim": 4})
    model = build_model(plan, task, {name: adapter})
    return Predictor(model.eval(), task)


def text_adapter(kind):
    return TextAdapter(4, tokenizer=TokenizerOptions(kind=kind), vocab_size=300)


def text_predictor(kind="word"):
    torch.manual_seed(0)
    return predictor_of(text_adapter(kind).fit(TEXTS))


def place(predictor, **vectors):
    adapter = predictor.model.adapters["text"]
    for word, vector in vectors.items():
        adapter.embedding.weight.data[adapter.tokenizer.vocabulary.token_to_id(word)] = (
            torch.tensor(vector)
        )


def test_embeddings_are_compared_by_direction_not_by_length():
    predictor = text_predictor()
    place(
        predictor,
        king=[3.0, 0, 0, 0],
        queen=[0.2, 0.02, 0, 0],
        dog=[-1.0, 0, 0, 0],
        saw=[1.0, 1, 0, 0],
    )
    found = predictor.neighbors("king", count=100)
    names = [name for name, _ in found]
    assert names[0] == "queen" and names[-1] == "dog" and "king" not in names
    shares = dict(found)
    assert shares["dog"] == pytest.approx(-1) and shares["saw"] == pytest.approx(2**-0.5)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert predictor.neighbors("king", count=1) == found[:1]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "word", "character"])
def test_every_kind_of_token_has_neighbors(kind):
    predictor = text_predictor(kind)
    embedding = F.normalize(predictor.model.adapters["text"].embedding.weight, dim=-1)
    tokenizer = predictor.model.adapters["text"].tokenizer.vocabulary
    token = tokenizer.encode("a", add_special_tokens=False).ids[-1]
    found = predictor.neighbors("a", count=3)
    likeness = (embedding @ embedding[token]).tolist()
    expected = sorted((v for i, v in enumerate(likeness) if i != token), reverse=True)[:3]
    assert [cosine for _, cosine in found] == pytest.approx(expected)


def test_a_word_of_several_tokens_is_refused_with_its_tokens():
    with pytest.raises(
        UserError, match=r"^token: 'kingdog' is not in the vocabulary; choose another token$"
    ):
        text_predictor().neighbors("kingdog")
    with pytest.raises(
        UserError,
        match=r"^token: 'ab' is not one token of the vocabulary, but is split into a \| b; choose",
    ):
        predictor_of(text_adapter("character").fit(["ab ba"])).neighbors("ab")
    with pytest.raises(UserError, match=r"^this model has no vocabulary for its inputs: image$"):
        predictor_of(ImageAdapter(4, patch_size=4, image_size=8)).neighbors("king")


def test_the_command_prints_the_neighbors(tmp_path, capsys):
    predictor = text_predictor()
    place(predictor, king=[1.0, 0, 0, 0], queen=[1.0, 0.1, 0, 0])
    model = predictor.model
    adapter = {"_target_": "dxn.tokenize.TextAdapter", "dim": 4, "tokenizer": {"kind": "word"}}
    plan = plan_of("text", adapter)
    folder = tmp_path / "model"
    model_folder.save(folder, model=model, plan=plan, task=predictor.task, card="")
    assert main(["neighbors", f"run={tmp_path}", "token=king", "count=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "tokens of the vocabulary" in " ".join(" ".join(lines[:3]).split())
    (line,) = (line for line in lines if "queen" in line)
    assert "0.995" in line
    assert main(["neighbors", f"run={tmp_path}", "token=nothing"]) == 2
    message = "dxn: token: 'nothing' is not in the vocabulary; choose another token\n"
    assert capsys.readouterr().err == message
    assert main(["neighbors", f"run={tmp_path}", "token=king", "count=0"]) == 2
    assert "count: must be at least 1, got 0" in capsys.readouterr().err
