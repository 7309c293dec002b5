"""Public models with an encoder and a decoder: T5, BART, mBART and Marian, against transformers."""

import itertools
import json

import pytest
import torch
from helpers.exhaustive import exhaustive_except
from helpers.peers import cases
from helpers.reference import lively_writer
from helpers.runs import train
from helpers.saving import changed_and_saved, load_complete
from helpers.sentencepiece import save_spm
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.models.decoding.decoder import Memory
from dxn.tasks.generate.target_tokenizer import MarkOptions, TargetTokenizer

T = cases.T
pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
VOCAB, DIM, NEW = 101, 44, 64
PAD, BEGIN, END, UNKNOWN, LANGUAGE, OTHER = 0, 1, 2, 3, 4, 5
TEXTS = ["w15 w7 w11", "w13", "w90 w80 w70 w60 w50 w40 w30 w20 w10", "w13 w13 w17 w19"]

T5 = {
    "vocab_size": VOCAB,
    "d_model": DIM,
    "d_kv": 6,
    "d_ff": 70,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 20,
    "pad_token_id": PAD,
    "decoder_start_token_id": PAD,
    "eos_token_id": END,
}
BART = {
    "vocab_size": VOCAB,
    "d_model": DIM,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 70,
    "decoder_ffn_dim": 58,
    "max_position_embeddings": 90,
    "pad_token_id": PAD,
    "bos_token_id": BEGIN,
    "eos_token_id": END,
    "decoder_start_token_id": END,
    "forced_eos_token_id": None,
}
MARIAN = {**BART, "decoder_start_token_id": PAD, "bos_token_id": PAD, "scale_embedding": True}
# Name, class of transformers, its config, and values of its generation config.
CASES = {
    "T5": ("T5", T5, {}),
    "T5 with a padded vocabulary": ("T5", {**T5, "vocab_size": VOCAB + 3}, {}),
    "Flan-T5": ("T5", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, {}),
    "BART": ("Bart", BART, {"forced_bos_token_id": BEGIN}),
    "BART with scaled embeddings": ("Bart", {**BART, "scale_embedding": True}, {}),
    "mBART": ("MBart", {**BART, "scale_embedding": True}, {"forced_bos_token_id": LANGUAGE}),
    "mT5": ("MT5", {**T5, "feed_forward_proj": "gated-gelu"}, {}),
    "NLLB": (
        "M2M100",
        {**BART, "activation_function": "relu", "scale_embedding": True},
        # Padding has no position there, so it must not be a token of a text.
        {"forced_bos_token_id": LANGUAGE, "bad_words_ids": [[PAD]]},
    ),
    "Marian": ("Marian", {**MARIAN, "activation_function": "swish"}, {"bad_words_ids": [[PAD]]}),
    "Marian with two vocabularies": (
        "Marian",
        {**MARIAN, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCAB - 10},
        {},
    ),
}
SEEDS = {"T5": 1, "mT5": 1, "Flan-T5": 1, "Marian with two vocabularies": 7}
CLASSES = {"T5": "T5ForConditionalGeneration", "Bart": "BartForConditionalGeneration"}
CLASSES |= {name: f"{name}ForConditionalGeneration" for name in ("MT5", "M2M100")}
CLASSES |= {"MBart": "MBartForConditionalGeneration", "Marian": "MarianMTModel"}


def save(folder, name):
    """Save a model with random weights in the public format, and return that of transformers."""
    kind, options, generation = CASES[name]
    torch.manual_seed(SEEDS.get(name, 0))
    config = getattr(T, f"{kind}Config")(**options)
    peer = getattr(T, CLASSES[kind])(config)
    if options.get("tie_word_embeddings") is False:
        peer.lm_head.weight = torch.nn.Parameter(peer.lm_head.weight.clone())
    if kind == "Marian":
        peer.final_logits_bias += torch.randn(peer.final_logits_bias.shape)
    lively_writer(peer).eval()
    with torch.no_grad():
        # Otherwise a text repeats a token, whose embedding is also a row of the output layer.
        for key, weight in peer.named_parameters():
            if key.endswith("norm.weight"):
                weight *= torch.randn_like(weight).sign()
            elif key.endswith("out_proj.weight") and kind != "MBart":
                weight *= 0.2
    for key, value in generation.items():
        setattr(peer.generation_config, key, value)
    peer.save_pretrained(folder)
    sizes = {"tokenizer.json": VOCAB}
    if "decoder_vocab_size" in options:
        sizes["target_tokenizer.json"] = VOCAB - 10
    for file, size in sizes.items():
        tokenizer_of(size).save(str(folder / file))
    return peer


def tokenizer_of(size):
    """A tokenizer whose tokens are numbers, and which ends a text with an end token."""
    words = {f"<{i}>" if i <= OTHER else f"w{i}": i for i in range(size)}
    tokenizer = Tokenizer(models.WordLevel(words, f"<{UNKNOWN}>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.add_special_tokens([f"<{i}>" for i in range(OTHER + 1)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A <{END}>", special_tokens=[(f"<{END}>", END)]
    )
    return tokenizer


def batch_of(texts):
    ids = [[int(word[1:]) for word in text.split()] + [END] for text in texts]
    longest = max(map(len, ids))
    padded = torch.tensor([each + [PAD] * (longest - len(each)) for each in ids])
    mask = torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in ids])
    return padded, mask


def written_by(peer, texts, **options):
    """The texts of transformers, without special tokens."""
    ids, mask = batch_of(texts)
    # A forced token counts as a new one there.
    new = NEW + (peer.generation_config.forced_bos_token_id is not None)
    found = peer.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=new, **options
    ).tolist()
    return [" ".join(f"w{i}" for i in each[1:] if i > OTHER) for each in found]


def written(model, texts, beams, penalty, max_new=NEW):
    model.task.beams, model.task.length_penalty = beams, penalty
    memory = memory_of(model, texts)
    found = model.task.search(model.model.head, memory, max_new=max_new)
    return [model.task.tokenizer.decode(each.ids) for each in found]


def memory_of(model, texts):
    ids, mask = batch_of(texts)
    rows = torch.arange(len(texts))
    text = {"ids": ids, "mask": mask > 0, "coords": torch.zeros(*ids.shape, 2), "rows": rows}
    with torch.inference_mode():
        tokens, _ = model.model.encode(model.model.embed({"text": text, "#size": len(texts)}))
    return Memory.from_tokens(tokens)


@pytest.mark.parametrize("name", CASES)
def test_the_logits_are_those_of_transformers(name, tmp_path):
    peer = save(tmp_path, name)
    model = dxn.from_public(str(tmp_path), dtype="float32")
    ids, mask = batch_of(TEXTS)
    targets = torch.randint(OTHER + 1, VOCAB - 10, (len(TEXTS), 7))
    with torch.inference_mode():
        expected = peer(ids, attention_mask=mask, decoder_input_ids=targets).logits
        every = torch.ones_like(targets, dtype=torch.bool)
        logits = model.model.head.decoder(targets, every, memory_of(model, TEXTS))
    # Without the rows that the tokenizer does not use.
    torch.testing.assert_close(logits, expected[..., : logits.shape[-1]], atol=1e-4, rtol=0)
    assert logits.shape[-1] >= VOCAB - 10


NAMES = [name for name in CASES if "with a" not in name and "scaled" not in name]
SEARCHES = itertools.product(NAMES, [(1, 0.0), (4, 0.0), (3, 1.0), (4, 2.0)])


@pytest.mark.parametrize(
    ("name", "beams", "penalty"),
    exhaustive_except(
        [(name, *search) for name, search in SEARCHES],
        ("T5", 1, 0.0),
        ("mBART", 3, 1.0),
        ("Marian with two vocabularies", 4, 2.0),
    ),
)
def test_texts_of_different_lengths_are_those_of_transformers(name, beams, penalty, tmp_path):
    peer = save(tmp_path, name)
    model = dxn.from_public(str(tmp_path), dtype="float32")
    options = {"num_beams": beams, "length_penalty": penalty}
    if beams > 1:
        options["early_stopping"] = "never"  # otherwise it stops before it has found the best one
    expected = written_by(peer, TEXTS, **options)
    assert written(model, TEXTS, beams, penalty) == expected
    alone = [written(model, [text], beams, penalty)[0] for text in TEXTS]
    assert alone == expected
    assert len(set(expected)) > 2


RULES = [
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2, "min_length": 20},
    {"no_repeat_ngram_size": 3, "repetition_penalty": 1.3},
    {"repetition_penalty": 0.7, "min_new_tokens": 9},
    {"min_length": 30, "max_length": 33, "forced_eos_token_id": END},
    {"max_length": 12, "forced_eos_token_id": [END], "no_repeat_ngram_size": 70},
    {"max_new_tokens": 7, "begin_suppress_tokens": [30, 31, 32]},
]


RULED = ["T5", "BART", "Marian"]


@pytest.mark.parametrize(
    ("name", "number", "beams"),
    exhaustive_except(
        itertools.product(RULED, range(len(RULES)), [1, 3, 4]),
        *((RULED[i % 3], i, (1, 3, 4, 3, 4, 1, 4)[i]) for i in range(len(RULES))),
    ),
)
def test_the_rules_of_a_generation_are_those_of_the_checkpoint(name, number, beams, tmp_path):
    rules = RULES[number]
    peer = save(tmp_path, name)
    options = {"num_beams": beams, "length_penalty": 2.0 if beams == 4 else 1.0, **rules}
    if beams > 1:
        options["early_stopping"] = "never"
    for key, value in options.items():
        setattr(peer.generation_config, key, value)
    if not rules.keys() & {"max_length", "max_new_tokens"}:
        peer.generation_config.max_length = NEW
    peer.generation_config.save_pretrained(tmp_path)
    model = dxn.from_public(str(tmp_path), dtype="float32")
    ids, mask = batch_of(TEXTS)
    found = peer.generate(ids, attention_mask=mask).tolist()
    expected = [" ".join(f"w{i}" for i in each[1:] if i > OTHER) for each in found]
    assert [each["prediction"] for each in model.predict([{"text": t} for t in TEXTS])] == expected
    assert [model.predict(text=text)["prediction"] for text in TEXTS] == expected


def test_the_options_of_a_generation_are_those_of_the_checkpoint(tmp_path):
    peer = save(tmp_path, "mBART")
    peer.generation_config.num_beams = 3
    peer.generation_config.length_penalty = 2.0
    peer.generation_config.early_stopping = "never"
    peer.generation_config.max_length = 30
    peer.save_pretrained(tmp_path)
    model = dxn.from_public(str(tmp_path), dtype="float32")
    tokenizer = model.task.tokenizer
    assert (tokenizer.begin_ids, tokenizer.end_ids) == ([END, LANGUAGE], [END])
    assert (model.task.beams, model.task.length_penalty, tokenizer.rules.length_offset) == (
        3,
        2.0,
        1,
    )
    assert [
        each["prediction"] for each in model.predict([{"text": text} for text in TEXTS])
    ] == written(model, TEXTS, 3, 2.0, None)


# The command line


@pytest.fixture
def pairs(tmp_path):
    rows = [f"w{i} w{i + 1} w{90 - i};w{i + 1} w{i}" for i in range(10, 26)]
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join(["text;translation", *rows]))
    return path


@pytest.mark.parametrize(
    "name", exhaustive_except(["T5", "mBART", "Marian with two vocabularies"], "mBART")
)
def test_a_training_starts_from_all_weights_and_keeps_the_tokens(name, tmp_path, pairs):
    save(tmp_path / "public", name)
    options = ["trainer.precision=float32", "trainer.device=cpu", "trainer.epochs=1"]
    options += ["optimizer.lr=1e-30", "optimizer.weight_decay=0", "batch_size=8"]
    options += [f"data.path={pairs}", "data.target=translation", "head=generate"]
    train(tmp_path / "run", *options, f"weights={tmp_path / 'public'}")
    public = dxn.from_public(str(tmp_path / "public"), dtype="float32")
    run = dxn.load(tmp_path / "run", dtype="float32")
    models = [run]
    if "two" not in name:  # a training from a run fits the vocabulary of the targets again
        train(tmp_path / "again", *options, f"weights={tmp_path / 'run'}")
        models.append(dxn.load(tmp_path / "again", dtype="float32"))
    for model in models:
        assert model.task.tokenizer.begin_ids == public.task.tokenizer.begin_ids
        state = model.model.state_dict()
        for key, tensor in public.model.state_dict().items():
            torch.testing.assert_close(state[key], tensor, rtol=0, atol=1e-20)
    assert written(run, TEXTS, 2, 1.0) == written(public, TEXTS, 2, 1.0)


def test_pairs_are_translated_and_evaluated_from_the_command_line(tmp_path, pairs, capsys):
    save(tmp_path, "Flan-T5")
    weights = f"weights={tmp_path}"
    assert main(["predict", weights, "dtype=float32", f"input.text={TEXTS[0]}"]) == 0
    model = dxn.from_public(str(tmp_path), dtype="float32")
    assert model.predict(text=TEXTS[0])["prediction"] in capsys.readouterr().out
    out = tmp_path / "out"
    table = [f"data.path={pairs}", "data.target=translation", f"output={out}"]
    assert main(["evaluate", weights, *table]) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert 0 < metrics["all/chrf"] < 100 and 0 <= metrics["all/bleu"] < 100


# What is refused


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "T5",
            {"feed_forward_proj": "gated-tanh"},
            "does not support the activation.*'gated-tanh'",
        ),
        ("BART", {"activation_function": "tanh"}, "does not support the activation.*'tanh'"),
        ("Marian", {"length_penalty": -1.0}, "a negative length_penalty, got -1.0"),
        ("mBART", {"decoder_layers": 0}, "decoder_layers"),
    ],
)
def test_a_config_that_cannot_be_computed_is_refused(name, change, message, tmp_path):
    save(tmp_path, name)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=message):
        dxn.from_public(str(tmp_path))


def test_the_missing_file_of_a_tokenizer_is_named(tmp_path):
    save(tmp_path, "Marian with two vocabularies")
    (tmp_path / "target_tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"neither in target_tokenizer.json nor in target.spm; add"):
        dxn.from_public(str(tmp_path))
    save(tmp_path, "Marian")
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "source.spm").write_bytes(b"\n")
    (tmp_path / "vocab.json").write_text('{"</s>": 0, "<unk>": 1}')
    with pytest.raises(UserError, match=r"source.spm: not a model of SentencePiece; download"):
        dxn.from_public(str(tmp_path))


def test_a_marian_with_the_pieces_of_sentencepiece_writes_the_same_and_learns(tmp_path, pairs):
    folder = tmp_path / "public"
    save(folder, "Marian")
    expected = written(dxn.from_public(str(folder), dtype="float32"), TEXTS, 2, 1.0)
    (folder / "tokenizer.json").unlink()
    special = {PAD: "<pad>", END: "</s>", UNKNOWN: "<unk>"}
    vocab = [special.get(i, f"\N{LOWER ONE EIGHTH BLOCK}w{i}") for i in range(VOCAB)]
    for name in ("source", "target"):
        scores = {piece: -float(i) for i, piece in enumerate(vocab) if i > OTHER}
        save_spm(folder / f"{name}.spm", scores, vocab)
    public = dxn.from_public(str(folder), dtype="float32")
    assert written(public, TEXTS, 2, 1.0) == expected
    (answer,) = public.predict([{"text": TEXTS[0]}])
    assert answer["prediction"] == public.predict(text=TEXTS[0])["prediction"] != ""
    options = ["trainer.precision=float32", "trainer.device=cpu", "trainer.epochs=1"]
    options += ["optimizer.lr=1e-30", "optimizer.weight_decay=0", "batch_size=8"]
    options += [f"data.path={pairs}", "data.target=translation", "head=generate"]
    train(tmp_path / "run", *options, f"weights={folder}")
    for name in ("source.spm", "target.spm"):
        (folder / name).unlink()  # a run needs no file of the checkpoint
    assert written(dxn.load(tmp_path / "run", dtype="float32"), TEXTS, 2, 1.0) == expected


@pytest.mark.parametrize("token", [VOCAB, "de_DE"])
def test_a_token_that_the_tokenizer_does_not_have_is_refused(token):
    tokenizer = TargetTokenizer(marks=MarkOptions(begin=[token]))
    with pytest.raises(UserError, match=r"^head.marks.begin: the tokenizer has no token"):
        tokenizer.use_vocabulary(tokenizer_of(VOCAB))


# Without the decoder, or without the output layer


def test_an_encoder_of_t5_embeds_texts(tmp_path):
    torch.manual_seed(0)
    peer = lively_writer(T.T5EncoderModel(T.T5Config(**T5))).eval()
    peer.save_pretrained(tmp_path)
    tokenizer_of(VOCAB).save(str(tmp_path / "tokenizer.json"))
    model = dxn.from_public(str(tmp_path), dtype="float32")
    ids, mask = batch_of(TEXTS)
    with torch.inference_mode():
        expected = peer(ids, attention_mask=mask).last_hidden_state
    found = memory_of(model, TEXTS).x
    torch.testing.assert_close(found[mask > 0], expected[mask > 0], atol=1e-4, rtol=0)
    assert model.embed(text=TEXTS[0]).shape == (DIM,)


def test_a_bare_bart_is_the_same_model(tmp_path):
    peer = save(tmp_path, "BART")
    expected = written(dxn.from_public(str(tmp_path), dtype="float32"), TEXTS, 1, 0.0)
    peer.model.save_pretrained(tmp_path)
    assert written(dxn.from_public(str(tmp_path), dtype="float32"), TEXTS, 1, 0.0) == expected


# Files of NLLB have no positions, which a training changes.
@pytest.mark.parametrize("name", [name for name in CASES if name != "NLLB"])
def test_a_changed_model_is_loaded_by_transformers(name, tmp_path):
    before = save(tmp_path, name)
    model, folder = changed_and_saved(tmp_path)
    peer = load_complete(type(before), folder)
    ids, mask = batch_of(TEXTS)
    written_ids = torch.randint(VOCAB - 10, (len(TEXTS), 11))
    with torch.inference_mode():
        decoder = model.model.head.decoder
        ones = torch.ones_like(written_ids, dtype=torch.bool)
        logits = decoder(written_ids, ones, memory_of(model, TEXTS))
        options = {"attention_mask": mask, "decoder_input_ids": written_ids}
        found = peer(ids, **options).logits[..., : logits.shape[-1]]
        torch.testing.assert_close(found, logits, rtol=0, atol=1e-4)
        expected = before(ids, **options).logits[..., : logits.shape[-1]]
        assert (expected - logits).abs().max() > 0.1
