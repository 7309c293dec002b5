"""Public models that write: their text against that of transformers, and what a run keeps."""

import json
import re
import shutil

import pytest
import torch
from helpers.exhaustive import exhaustive_except
from helpers.peers import cases
from helpers.reference import lively_writer, save_words
from helpers.runs import interrupt, refused, train
from helpers.saving import changed_and_saved, load_complete
from torch.utils.flop_counter import FlopCounterMode

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.models.decoding.language_model import LanguageModel
from dxn.tasks.target import IGNORED
from dxn.training.finetune import Finetune
from dxn.weights import Checkpoint, read_public

T = cases.T
pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
VOCAB = 101
NEW = 64
SIZES = {"tied": {}, "untied": {"tie_word_embeddings": False}}
PROMPTS = ["w5 w7 w11", "w3", "w90 w80 w70 w60 w50 w40 w30", "w13 w13 w17 w19"]


FAST = ["trainer.precision=float32", "trainer.device=cpu", "trainer.epochs=1", "batch_size=7"]


def save(folder, ends=(2,), **options):
    """A GPT-2 with random weights in the public format, and the model of transformers."""
    torch.manual_seed(0)
    config = T.GPT2Config(
        n_embd=44, n_layer=3, n_head=2, vocab_size=VOCAB, n_positions=128, bos_token_id=1, **options
    )
    config.eos_token_id = ends[0]
    peer = lively_writer(T.GPT2LMHeadModel(config)).eval()
    peer.generation_config.eos_token_id = list(ends) if len(ends) > 1 else ends[0]
    peer.save_pretrained(folder)
    save_words(folder, VOCAB)
    return peer


def continued(peer, prompt, ends):
    """The greedy continuation of transformers, without its end token."""
    ids = torch.tensor([[int(word[1:]) for word in prompt.split()]])
    mask = torch.ones_like(ids)
    options = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": NEW}
    found = peer.generate(ids, attention_mask=mask, **options)[0].tolist()
    assert len(found) == ids.shape[1] + NEW or found[-1] in ends
    return " ".join(f"w{i}" for i in (found[:-1] if found[-1] in ends else found))


def test_texts_are_sampled_as_generation_config_says(tmp_path, capsys):
    save(tmp_path)
    path = tmp_path / "generation_config.json"
    settings = json.loads(path.read_text())

    def generated(*options, **changes):
        path.write_text(json.dumps({**settings, **changes}))
        assert main(["generate", f"weights={tmp_path}", "prompt=w5 w7", *options]) == 0
        return capsys.readouterr()

    cold = generated("temperature=0").out
    assert generated().out != cold == generated(do_sample=False).out
    rare = {"do_sample": True, "temperature": 0.9, "top_k": 7}
    assert generated(**rare).out == generated("temperature=0.9", "top_k=7").out != cold
    told = generated("temperature=0", repetition_penalty=1.2)
    assert told.out == cold
    assert "dxn does not use repetition_penalty=1.2 in generation_config.json" in told.err


@pytest.mark.parametrize("name", exhaustive_except(SIZES, "tied"))
def test_prompts_of_different_lengths_are_continued_as_by_transformers(name, tmp_path):
    peer = save(tmp_path, **SIZES[name])
    model = dxn.from_public(str(tmp_path), dtype="float32")
    assert model.task.name == "language"
    texts = model.write(prompt=PROMPTS, max_new=NEW)
    assert texts == [continued(peer, prompt, (2,)) for prompt in PROMPTS]
    assert texts == [model.write(prompt=prompt, max_new=NEW)[0] for prompt in PROMPTS]
    assert min(len(set(text.split())) for text in texts) > 15
    assert ("head.output.weight" in model.model.state_dict()) == (name == "untied")
    assert model.embed(text="w5 w7").shape == (44,)


def test_each_of_several_end_tokens_ends_a_text(tmp_path):
    save(tmp_path / "one")
    texts = dxn.from_public(str(tmp_path / "one"), dtype="float32").write(
        prompt=PROMPTS, max_new=NEW
    )
    # Tokens that the model generates after 5 and 9 others.
    words = [text.split()[len(p.split()) :] for text, p in zip(texts, PROMPTS, strict=True)]
    ends = [int(words[0][5][1:]), int(words[2][9][1:])]
    peer = save(tmp_path / "two", (2, *ends))
    texts = dxn.from_public(str(tmp_path / "two"), dtype="float32").write(
        prompt=PROMPTS, max_new=NEW
    )
    assert texts == [continued(peer, prompt, (2, *ends)) for prompt in PROMPTS]
    lengths = [len(text.split()) - len(p.split()) for text, p in zip(texts, PROMPTS, strict=True)]
    assert lengths[0] <= 5
    assert lengths[2] <= 9


@pytest.mark.parametrize("name", SIZES)
def test_a_language_model_of_a_run_starts_from_all_weights_and_keeps_the_ends(name, tmp_path):
    save(tmp_path / "public", (2, 7), **SIZES[name])
    (tmp_path / "text.txt").write_text("w5 w7 w11 w13 w17\n" * 60)
    train(
        tmp_path / "run",
        *FAST,
        *("optimizer.lr=1e-30", "optimizer.weight_decay=0"),
        *("data=text", f"data.path={tmp_path / 'text.txt'}", "adapters=[text]"),
        *("head=language", f"weights={tmp_path / 'public'}", "adapters.text.max_len=64"),
    )
    run = dxn.load(tmp_path / "run", dtype="float32")
    public = dxn.from_public(str(tmp_path / "public"), dtype="float32")
    assert run.task.target.ends == public.task.target.ends == [2, 7]
    state = run.model.state_dict()
    for name, tensor in public.model.state_dict().items():
        if not name.endswith("pos_embed.weight"):  # 64 of 128 positions
            torch.testing.assert_close(state[name], tensor, rtol=0, atol=1e-20)
    assert run.write(prompt=PROMPTS, max_new=30) == public.write(prompt=PROMPTS, max_new=30)
    again = read_public(str(tmp_path / "run"))
    assert again.task_state() == {"ends": [2, 7], "sampling": {}, "unused": []}


def test_a_run_starts_from_the_output_layer_of_another(tmp_path, capsys):
    save(tmp_path / "public", (2, 7), tie_word_embeddings=False)
    (tmp_path / "text.txt").write_text("w5 w7 w11 w13 w17\n" * 60)
    words = [*FAST, "optimizer.lr=1e-30", "optimizer.weight_decay=0", "adapters=[text]"]
    words += ["data=text", f"data.path={tmp_path / 'text.txt'}", "head=language"]
    words += ["adapters.text.max_len=64"]
    train(tmp_path / "one", *words, f"weights={tmp_path / 'public'}")
    train(tmp_path / "two", *words, f"weights={tmp_path / 'one'}")
    one, two = (dxn.load(tmp_path / name, dtype="float32").model for name in ("one", "two"))
    torch.testing.assert_close(two.head.output.weight, one.head.output.weight)
    capsys.readouterr()
    options = [f"weights={tmp_path / 'one'}", "head.output.tie_embeddings=true"]
    assert main(["train", *words, *options, f"run={tmp_path / 'three'}"]) == 2
    assert "head.output.tie_embeddings: the weights have False, got True" in capsys.readouterr().err


def test_a_language_model_without_its_output_layer_is_refused(tmp_path):
    save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["tie_word_embeddings"] = False
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"GPT-2, but neither .* contain 'lm_head.weight'"):
        read_public(str(tmp_path))


# Low-rank changes


LORA = ("finetune.freeze=all", "finetune.lora_rank=2", "finetune.lora_targets=[all-linear]")


def learn(tmp_path, *words):
    (tmp_path / "text.txt").write_text("w5 w7 w11 w13 w17\n" * 60)
    data = ("data=text", f"data.path={tmp_path / 'text.txt'}", "adapters=[text]", "head=language")
    train(tmp_path / "run", *FAST, *data, f"weights={tmp_path / 'public'}", *LORA, *words)
    return dxn.load(tmp_path / "run", dtype="float32").model.state_dict()


@pytest.mark.parametrize("name", SIZES)
def test_only_low_rank_changes_of_a_frozen_language_model_are_trained(name, tmp_path, capsys):
    save(tmp_path / "public", **SIZES[name])
    before = dxn.from_public(str(tmp_path / "public"), dtype="float32").model.state_dict()
    after = learn(tmp_path, "optimizer.lr=0.1", "backbone.activation_checkpointing=true")
    changed = {name for name in before if not torch.equal(after[name], before[name])}
    layers = ("attn.qkv", "attn.proj", "mlp.up", "mlp.down")
    blocks = {f"backbone.blocks.{i}.{layer}.weight" for i in range(3) for layer in layers}
    assert changed == blocks
    # The pairs of matrices of the four layers, with widths 44, 132 and 176.
    number = 3 * 2 * ((44 + 132) + (44 + 44) + 2 * (44 + 176))
    assert f"; trained: {number:,}\n" in capsys.readouterr().out


def test_the_output_layer_of_a_language_model_cannot_be_a_target(tmp_path, capsys):
    save(tmp_path / "public", **SIZES["untied"])
    with pytest.raises(AssertionError):
        learn(tmp_path, "finetune.lora_targets=[lm_head]")
    # It is not one of the linear layers, because the loss uses its matrix without calling it.
    assert "no name of a linear layer ends in 'lm_head'" in capsys.readouterr().err


@pytest.mark.parametrize("base", ["int8", "nf4"])
def test_a_language_model_of_few_bits_is_saved_in_full_precision(base, tmp_path, capsys):
    save(tmp_path / "public")
    before = dxn.from_public(str(tmp_path / "public"), dtype="float32").model.state_dict()
    after = learn(tmp_path, f"finetune.base={base}", "trainer.precision=bf16", "optimizer.lr=0")
    blocks = [name for name in before if ".blocks." in name and before[name].ndim == 2]
    for name in blocks:
        error = (after[name] - before[name]).square().mean().sqrt() / before[name].std()
        assert 0 < error < {"int8": 0.02, "nf4": 0.15}[base]
    rest = before.keys() - set(blocks) - {"adapters.text.pos_embed.weight"}
    assert all(torch.equal(after[name], before[name]) for name in rest)
    assert main(["verify", f"run={tmp_path / 'run'}"]) == 0


def test_another_rank_or_base_is_refused_when_a_run_resumes(tmp_path, capsys):
    save(tmp_path / "public")
    learn(tmp_path, "finetune.base=int8")
    resume = ["train", f"resume={tmp_path / 'run'}", "trainer.epochs=2", "resume.force=true"]
    for change, said in (
        ("finetune.lora_rank=3", r"lora\.up has \(132, 3\)|has \(132, 2\) float32 instead of"),
        ("finetune.base=null", "is unexpected|float32"),
        ("finetune.base=nf4", "uint8"),
    ):
        (line,) = refused(capsys, [*resume, change])
        assert "does not fit the model of the configuration" in line
        assert re.search(said, line), line


def test_a_run_of_low_rank_updates_resumes_without_its_base_weights(tmp_path, monkeypatch):
    save(tmp_path / "public")
    words = ["optimizer.lr=0.1", "finetune.base=int8", "finetune.lora_dropout=0.1"]
    words += ["trainer.epochs=2", "trainer.checkpoint_minutes=1e-9"]
    whole = learn(tmp_path, *words)
    shutil.rmtree(tmp_path / "run")
    with interrupt(monkeypatch, step=2), pytest.raises(AssertionError):
        learn(tmp_path, *words)
    shutil.rmtree(tmp_path / "public")
    assert main(["train", f"resume={tmp_path / 'run'}"]) == 0
    resumed = dxn.load(tmp_path / "run", dtype="float32").model.state_dict()
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


@pytest.mark.parametrize("is_training", [True, False])
def test_the_blocks_compute_no_padding_and_rows_do_not_see_each_other(is_training, tmp_path):
    save(tmp_path)
    model = dxn.from_public(str(tmp_path), dtype="float32").model.train(is_training)
    lengths = [3, 19, 2, 47, 11, 5]
    rand = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, VOCAB, (n,), generator=rand) for n in lengths]
    tokens = []
    for block in model.backbone.blocks:
        block.register_forward_pre_hook(lambda _, args: tokens.append(args[0].shape[:-1].numel()))

    def loss(texts):
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad(texts, True, 0)
        mask = pad([torch.ones_like(text, dtype=torch.bool) for text in texts], True, False)
        text = {"ids": ids, "mask": mask, "rows": torch.arange(len(texts))}
        text["coords"] = torch.zeros(*ids.shape, 1)
        target = pad(
            [torch.cat([text[1:], text.new_tensor([IGNORED])]) for text in texts], True, IGNORED
        )
        return model({"text": text, "target": {"ids": target}, "#size": len(texts)})

    together = loss(rows)
    assert tokens == [sum(lengths)] * len(model.backbone.blocks)
    torch.testing.assert_close(together, sum(loss([row]) for row in rows))


def step_flop(model, ids):
    """Operations of the matrix products of a step."""
    mask = torch.ones_like(ids, dtype=torch.bool)
    batch = {"text": {"ids": ids, "mask": mask, "rows": torch.arange(len(ids))}}
    batch["text"]["coords"] = torch.zeros(*ids.shape, 1)
    batch |= {"target": {"ids": ids}, "#size": len(ids)}
    with FlopCounterMode(display=False) as counter:
        model(batch).backward()
    return counter.get_total_flops()


def test_a_step_computes_no_gradient_of_a_frozen_matrix(tmp_path):
    save(tmp_path)
    ids = torch.randint(3, VOCAB, (5, 13), generator=torch.Generator().manual_seed(0))
    full = dxn.from_public(str(tmp_path), dtype="float32").model.train()
    lora = dxn.from_public(str(tmp_path), dtype="float32").model.train()
    Finetune(freeze="all", lora_rank=2, lora_targets=("all-linear",))(lora, set(lora.state_dict()))
    T, D, rank = ids.numel(), 44, 2
    shapes = [(3 * D, D), (D, D), (4 * D, D), (D, 4 * D)] * 3
    # Gradients of the matrices and of the output layer, and that of the input of the first layer.
    less = sum(2 * T * rows * columns for rows, columns in shapes)
    less += 2 * T * VOCAB * D + 2 * T * 3 * D * D
    more = sum(6 * T * rank * (rows + columns) for rows, columns in shapes) - 2 * T * rank * D
    assert step_flop(full, ids) - step_flop(lora, ids) == less - more


# generation_config.json


def generation_of(folder, content, **config):
    (folder / "generation_config.json").write_text(json.dumps(content))
    return Checkpoint("x", {}, config=config, folder=folder).generation


def test_how_a_model_generates_is_read_from_either_file(tmp_path):
    assert generation_of(tmp_path, {"eos_token_id": 5}).eos_token_id == [5]
    assert generation_of(tmp_path, {"eos_token_id": [5, 7]}, eos_token_id=3).eos_token_id == [5, 7]
    assert generation_of(tmp_path, {}, eos_token_id=3).eos_token_id == [3]
    assert generation_of(tmp_path, {}, text_config={"eos_token_id": 3}).eos_token_id == [3]
    assert generation_of(tmp_path, {}).eos_token_id == []
    found = generation_of(
        tmp_path,
        {"suppress_tokens": [1, 2], "lang_to_id": {"<|en|>": 7}, "do_sample": True, "top_k": 3},
        decoder_start_token_id=11,
    )
    assert found.suppress_tokens == [1, 2]
    assert found.lang_to_id == {"<|en|>": 7}
    assert found.decoder_start_token_id == 11
    assert Checkpoint("x", {}, config={"eos_token_id": 13}).generation.eos_token_id == [13]


@pytest.mark.parametrize("value", ["x", [1.5], [-7], {"a": 1}])
def test_an_end_token_that_is_no_id_is_refused(value, tmp_path):
    message = rf"^weights: {tmp_path / 'generation_config.json'}: .*eos_token_id"
    with pytest.raises(UserError, match=message):
        generation_of(tmp_path, {"eos_token_id": value})


@pytest.mark.parametrize("name", SIZES)
def test_a_changed_model_is_loaded_by_transformers(name, tmp_path):
    before = save(tmp_path, **SIZES[name])
    model, folder = changed_and_saved(tmp_path)
    peer = load_complete(type(before), folder)
    ids = torch.randint(VOCAB, (3, 23), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        logits = LanguageModel(model.model)(ids, torch.ones_like(ids, dtype=torch.bool))
        torch.testing.assert_close(peer(ids).logits, logits, rtol=0, atol=1e-4)
        assert (before(ids).logits - logits).abs().max() > 0.1
