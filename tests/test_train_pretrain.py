"""Masked pretraining: what is hidden, and that guessing it is learned."""

import pytest
import torch

from dxn.cli import main
from dxn.data.rows import Rows
from dxn.data.samples import Samples, open_rows
from dxn.models import Backbone, Classify, EarlyFusion, Model
from dxn.tokenize import TextAdapter
from dxn.tokenize.text import SPECIALS
from dxn.train.pretrain import MaskedText, hide

SENTENCES = [f"{who} {does} {what}" for who, does, what in (("cats", "chase", "mice"), ("dogs", "chew", "bones"))] * 12
WORDS = {"vocab_size": 101, "special_ids": range(len(SPECIALS)), "mask_id": SPECIALS.index("[MASK]")}


def parts(adapter, rows):
    samples = Samples(
        open_rows(rows, {adapter.modality: adapter.prepare}, need_target=False), {"text": adapter.prepare}
    )
    model = Model(
        {adapter.modality: adapter},
        fusion=EarlyFusion(16),
        backbone=Backbone(16, depth=1, num_heads=2),
        head=Classify(16, num_classes=2),
    )
    return model, samples


def test_about_the_share_is_hidden_and_mostly_by_mask():
    ids = torch.randint(len(SPECIALS), 101, (97, 89))
    mask = torch.rand(97, 89) < 0.7
    chosen, shown = hide(ids, mask, 0.3, torch.Generator().manual_seed(0), **WORDS)
    assert not (chosen & ~mask).any()
    assert torch.equal(shown[~chosen], ids[~chosen])
    assert chosen.sum() / mask.sum() == pytest.approx(0.3, abs=0.02)
    assert (shown[chosen] == SPECIALS.index("[MASK]")).float().mean() == pytest.approx(0.8, abs=0.02)
    # 1 in 10 stays, and of those that become another one some few become themselves.
    assert (shown[chosen] == ids[chosen]).float().mean() == pytest.approx(0.1 + 0.1 / 96, abs=0.02)


def test_special_subwords_are_never_hidden():
    ids = torch.arange(len(SPECIALS)).repeat(3, 50)
    chosen, shown = hide(ids, torch.ones_like(ids, dtype=torch.bool), 0.9, torch.Generator(), **WORDS)
    assert not chosen.any() and torch.equal(shown, ids)


def test_what_stands_beside_a_hidden_word_gives_it_away():
    adapter = TextAdapter(16, subwords="word").fit(SENTENCES)
    model, samples = parts(adapter, Rows({"text": SENTENCES}, [str(i) for i in range(24)]))
    epochs = list(MaskedText(epochs=60, share=0.3, lr=1e-2)(model, samples, batch_size=8, bf16=False))
    assert [epoch.number for epoch in epochs] == list(range(1, 61))
    assert epochs[0].accuracy < 0.6 < 0.85 < epochs[-1].accuracy  # a sentence may lose all of its words


def test_without_text_there_is_nothing_to_hide_and_nothing_is_written(tmp_path, capsys):
    assert main(["train", "adapters=[image]", "pretrain=masked", f"run={tmp_path / 'run'}"]) == 2
    assert "pretrain: there is no text to hide words of, only image" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_pretrains_before_it_trains(tmp_path, capsys):
    tiny = ["data.num_train=23", "data.num_validation=7", "data.num_test=7", "dim=16", "backbone.num_heads=2"]
    asked = ["pretrain=masked", "pretrain.epochs=2", "trainer.epochs=1", f"run={tmp_path / 'run'}"]
    assert main(["train", "adapters=[text]", *tiny, *asked]) == 0
    shown = capsys.readouterr().out
    assert shown.index("pretraining 1/2") < shown.index("pretraining 2/2") < shown.index("epoch 1/1")
