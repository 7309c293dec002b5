"""Which subwords lie close to one."""

import pytest
import torch
import torch.nn.functional as F

from dxn.cli import main
from dxn.data.targets import Target
from dxn.errors import UserError
from dxn.models import Backbone, Classify, EarlyFusion, Model
from dxn.tokenize import ImageAdapter, TextAdapter
from dxn.train import bundle
from dxn.train.bundle import Predictor

TEXTS = ["the king and the queen", "a dog saw the king", "the queen fed a dog"] * 3


def predictor_of(adapter):
    model = Model(
        {adapter.modality: adapter},
        fusion=EarlyFusion(4),
        backbone=Backbone(4, depth=1, num_heads=2),
        head=Classify(4, num_classes=2),
    )
    return Predictor(model.eval(), Target("class", ("a", "b")))


def text_predictor(subwords="word"):
    torch.manual_seed(0)
    return predictor_of(TextAdapter(4, subwords=subwords, vocab_size=300).fit(TEXTS))


def place(predictor, **vectors):
    adapter = predictor.model.adapters["text"]
    for word, vector in vectors.items():
        adapter.table.weight.data[adapter.prepare.tokenizer.token_to_id(word)] = torch.tensor(vector)


def test_words_of_like_direction_come_first_whatever_their_length():
    predictor = text_predictor()
    place(predictor, king=[3.0, 0, 0, 0], queen=[0.2, 0.02, 0, 0], dog=[-1.0, 0, 0, 0], saw=[1.0, 1, 0, 0])
    found = predictor.neighbors("king", count=100)
    names = [name for name, _ in found]
    assert names[0] == "queen" and names[-1] == "dog" and "king" not in names
    shares = dict(found)
    assert shares["dog"] == pytest.approx(-1) and shares["saw"] == pytest.approx(2**-0.5)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert predictor.neighbors("king", count=1) == found[:1]


@pytest.mark.parametrize("subwords", ["bpe", "wordpiece", "unigram", "word", "character"])
def test_every_kind_of_subword_has_neighbours(subwords):
    predictor = text_predictor(subwords)
    table = F.normalize(predictor.model.adapters["text"].table.weight, dim=-1)
    tokenizer = predictor.model.adapters["text"].prepare.tokenizer
    token = tokenizer.encode("a", add_special_tokens=False).ids[-1]
    found = predictor.neighbors("a", count=3)
    likeness = (table @ table[token]).tolist()
    expected = sorted((v for i, v in enumerate(likeness) if i != token), reverse=True)[:3]
    assert [cosine for _, cosine in found] == pytest.approx(expected)


def test_what_is_no_single_subword_is_named_with_its_pieces():
    with pytest.raises(UserError, match=r"^token: 'kingdog' is not in the vocabulary$"):
        text_predictor().neighbors("kingdog")
    with pytest.raises(UserError, match=r"^token: 'ab' is cut into a \| b; name one of them$"):
        predictor_of(TextAdapter(4, subwords="character").fit(["ab ba"])).neighbors("ab")
    with pytest.raises(UserError, match=r"^this model takes image: it has no subwords$"):
        predictor_of(ImageAdapter(4, patch_size=4, image_size=8)).neighbors("king")


def test_the_command_prints_them(tmp_path, capsys):
    predictor = text_predictor()
    place(predictor, king=[1.0, 0, 0, 0], queen=[1.0, 0.1, 0, 0])
    model = predictor.model
    parts = {
        "adapters": {"text": {"_target_": "dxn.tokenize.TextAdapter", "dim": 4, "subwords": "word"}},
        "fusion": {"_target_": "dxn.models.EarlyFusion", "dim": 4, "modalities": ["text"]},
        "backbone": {"_target_": "dxn.models.Backbone", "dim": 4, "depth": 1, "num_heads": 2},
        "head": {"_target_": "dxn.models.Classify", "dim": 4, "num_classes": 2},
    }
    bundle.save(tmp_path / "model", model=model, parts=parts, target=predictor.target, card="")
    assert main(["neighbors", f"run={tmp_path}", "token=king", "count=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "queen" in lines[3] and "0.995" in lines[3] and len(lines) == 6
    assert main(["neighbors", f"run={tmp_path}", "token=nothing"]) == 2
    assert capsys.readouterr().err == "dxn: token: 'nothing' is not in the vocabulary\n"
    assert main(["neighbors", f"run={tmp_path}", "token=king", "count=0"]) == 2
    assert "count: must be at least 1, got 0" in capsys.readouterr().err
