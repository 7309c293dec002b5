"""Question answering with the weights of BERT, DistilBERT and RoBERTa, beside transformers."""

import itertools
import json

import pytest
import torch
import transformers
from helpers.exports import assert_answers_are_equal, exported
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.models.model import as_float
from dxn.runs.saved.loading import from_public

pytestmark = pytest.mark.filterwarnings("ignore:::transformers", "ignore::FutureWarning")

WORDS = "where who what does live in is a the ada bob eve york new lima oslo and loves tea rice of"
LENGTH = 24
TEXT = "Ada loves tea and Bob lives in New York, Eve in Lima; Oslo is where Ada and Eve love rice"
LONG = " ".join(
    f"{TEXT} {place} of {food}." for place in ("Lima", "York") for food in ("tea", "rice")
)
QUESTIONS = ["Where does Ada live?", "Who is in Lima and Oslo", "What is it"]
SIZES = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "initializer_range": 0.5,
}
DISTIL = {"dim": 12, "n_layers": 2, "n_heads": 2, "hidden_dim": 20, "initializer_range": 0.5}


def tokenizer_of(specials, single, pair):
    pieces = [*specials, *WORDS.split(), *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
    pieces += [c for c in "abcdefghijklmnopqrstuvwxyz,.;?" if c not in pieces]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=specials[-1]))
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    names = [(name, vocabulary[name]) for name in specials]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=names
    )
    return tokenizer


BERT = (["[PAD]", "[CLS]", "[SEP]", "[UNK]"], "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
ROBERTA = (["<s>", "<pad>", "</s>", "<unk>"], "<s> $A </s>", "<s> $A </s> </s> $B </s>")
FAMILIES = {
    "bert": (
        BERT,
        transformers.BertForQuestionAnswering,
        transformers.BertConfig,
        {**SIZES, "max_position_embeddings": LENGTH},
    ),
    "distilbert": (
        BERT,
        transformers.DistilBertForQuestionAnswering,
        transformers.DistilBertConfig,
        {**DISTIL, "max_position_embeddings": LENGTH},
    ),
    "roberta": (
        ROBERTA,
        transformers.RobertaForQuestionAnswering,
        transformers.RobertaConfig,
        {**SIZES, "max_position_embeddings": LENGTH + 2, "type_vocab_size": 1, "pad_token_id": 1},
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def peer(request, tmp_path_factory):
    """A folder of transformers with random weights, its model and its tokenizer."""
    folder = tmp_path_factory.mktemp(request.param)
    template, model_class, config_class, options = FAMILIES[request.param]
    tokenizer = tokenizer_of(*template)
    torch.manual_seed(0)
    model = model_class(config_class(vocab_size=tokenizer.get_vocab_size(), **options)).eval()
    with torch.no_grad():
        model.qa_outputs.bias.normal_()
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder, model, tokenizer


def batch_of(ours, texts):
    task = ours.task
    samples = [
        {
            name: ours.tokenizers[name](text)
            for name, text in zip(("question", "context"), pair, strict=True)
        }
        for pair in texts
    ]
    batch = {"#size": len(texts), "#index": list(range(len(texts)))}
    for name in ("question", "context"):
        batch[name] = ours.tokenizers[name].collate([sample[name] for sample in samples])
        batch[name]["rows"] = torch.arange(len(texts))
    return batch, task.target.windows


def features(tokenizer, question, text, overlap):
    """The windows of a pair as transformers makes them: encodings of at most LENGTH tokens."""
    tokenizer.enable_truncation(LENGTH, strategy="only_second", stride=overlap)
    encoding = tokenizer.encode(question, text)
    tokenizer.no_truncation()
    return [encoding, *encoding.overflowing]


@torch.inference_mode()
def logits_of(model, encoding):
    kinds = torch.tensor([encoding.type_ids])
    options = {"token_type_ids": kinds} if model.config.model_type == "bert" else {}
    output = model(torch.tensor([encoding.ids]), **options)
    return torch.stack([output.start_logits[0], output.end_logits[0]], -1)


@torch.inference_mode()
def test_logits_of_all_windows_are_equal(peer):
    folder, model, tokenizer = peer
    ours = from_public(str(folder), head={"overlap": 4})
    texts = [(QUESTIONS[0], LONG), (QUESTIONS[1], TEXT), (QUESTIONS[2], "Lima")]
    batch, windows = batch_of(ours, texts)
    output = as_float(ours.model(batch))
    places = windows.places(batch)
    for i, (question, text) in enumerate(texts):
        theirs = features(tokenizer, question, text, 4)
        assert sum(int(place.is_new[i]) for place in places) == len(theirs)
        for number, encoding in enumerate(theirs):
            logits = logits_of(model, encoding)
            columns = [0, *(j for j, owner in enumerate(encoding.sequence_ids) if owner == 1)]
            got = output[i, number, : len(columns)]
            torch.testing.assert_close(got, logits[columns], rtol=0, atol=1e-4)
            assert int(places[number].count[i]) == len(columns) - 1


@pytest.mark.parametrize("is_optional", [False, True])
def test_answers_are_those_of_the_logits_of_transformers(peer, is_optional):
    folder, model, tokenizer = peer
    ours = from_public(str(folder), head={"overlap": 4, "max_answer": 6})
    ours.task.target.is_optional = is_optional
    for question in QUESTIONS:
        answers, none = [], 1.0
        for encoding in features(tokenizer, question, LONG, 4):
            columns = [0, *(j for j, owner in enumerate(encoding.sequence_ids) if owner == 1)]
            shares = logits_of(model, encoding)[columns].softmax(0)
            none = min(none, float(shares[0].prod()))
            offsets = [encoding.offsets[j] for j in columns]
            for i in range(1, len(columns)):
                for j in range(i, min(i + 6, len(columns))):
                    score = float(shares[i, 0] * shares[j, 1])
                    answers.append((score, offsets[i][0], offsets[j][1]))
        score = max(answers)[0]
        # Windows with the same tokens have the same scores.
        best = {(LONG[a:b], a, b) for value, a, b in answers if value >= score * (1 - 1e-4)}
        got = ours.predict(question=question, context=LONG)
        if is_optional and none >= score:
            assert got["prediction"] == "" and got["start"] is None
            continue
        assert (got["prediction"], got["start"], got["end"]) in best
        assert got["score"] == pytest.approx(score, rel=1e-3)


@pytest.fixture(scope="module")
def run(peer, tmp_path_factory):
    """A run that started from the weights, and did not change them."""
    tmp_path = tmp_path_factory.mktemp("span")
    rows = [
        {"question": QUESTIONS[i % 3], "context": TEXT, "answers": "Lima" if i % 4 else ""}
        for i in range(24)
    ]
    for i, row in enumerate(rows):
        row["context"] = f"{'Bob and ' * i}{row['context']}"
    data = tmp_path / "qa.json"
    data.write_text(json.dumps(rows))
    options = {"weights": str(peer[0]), "head": "span", "trainer": {"epochs": 1}, "report": False}
    dxn.train(
        str(data),
        run=str(tmp_path / "run"),
        batch_size=8,
        baseline="none",
        preset="plain",
        optimizer={"lr": 0.0},
        **options,
    )
    return tmp_path / "run"


def test_fine_tuning_starts_from_the_weights(peer, run):
    start = from_public(str(peer[0]))
    start.task.target.is_optional = True
    inputs = {"question": QUESTIONS[0], "context": TEXT}
    assert dxn.load(run).predict(**inputs) == start.predict(**inputs)


@pytest.mark.exhaustive
def test_an_exported_program_finds_the_same_answers(run, tmp_path):
    exported = tmp_path / "exported"
    assert main(["export", f"run={run}", "format=torch", f"output={exported}"]) == 0
    model = dxn.load(run)
    for question in (QUESTIONS[0], f"{QUESTIONS[0]} {TEXT}"):  # the second one is cut
        assert_answers_are_equal(model, exported, question, LONG)


# Rerankers: a number for two texts in the sequence that answers are found in

ACTIVATIONS = {
    "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
    "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
}


@pytest.mark.parametrize("key", ACTIVATIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_reranker_scores_two_texts_as_transformers(name, key, tmp_path, capsys):
    template, _, config_class, options = FAMILIES[name]
    tokenizer = tokenizer_of(*template)
    torch.manual_seed(0)
    config = config_class(vocab_size=tokenizer.get_vocab_size(), num_labels=1, **options)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: ACTIVATIONS[key]}))
    ours = dxn.from_public(str(tmp_path))
    rows = [
        {"text": QUESTIONS[i], "text_pair": text} for i, text in enumerate(("Lima", TEXT, LONG))
    ]
    for row, answer in zip(rows, ours.predict(rows), strict=True):
        (encoding, *_) = features(tokenizer, row["text"], row["text_pair"], 0)
        kinds = torch.tensor([encoding.type_ids])
        extra = {"token_type_ids": kinds} if name == "bert" else {}
        with torch.inference_mode():
            logit = model(torch.tensor([encoding.ids]), **extra).logits
        expected = logit.sigmoid() if key == "sentence_transformers" else logit
        assert answer["prediction"] == pytest.approx(float(expected), abs=1e-4)
    inputs = [f"input.{column}={value}" for column, value in rows[0].items()]
    assert main(["predict", f"weights={tmp_path}", *inputs]) == 0
    assert "prediction: " in capsys.readouterr().out
    # Without its settings, the file does not tell that the model compares texts.
    path.write_text(json.dumps({**json.loads(path.read_text()), key: None}))
    plain = dxn.from_public(str(tmp_path), head={"pair": True}).predict(**rows[0])
    assert list(dxn.from_public(str(tmp_path)).inputs) == ["text"]
    if key != "sentence_transformers":
        assert plain == ours.predict(**rows[0])


@pytest.mark.parametrize(
    "start",
    [
        ["weights={}"],
        # Its width is not that of the model, and its vectors are those of both texts together.
        ["pretrained.text={}", "dim=8", "finetune.freeze=all"],
    ],
)
@pytest.mark.parametrize("peer", ["bert"], indirect=True)
def test_a_model_of_text_pairs_is_trained_and_saved(peer, start, tmp_path):
    rows = [{"a": QUESTIONS[i % 3], "b": "tea " * (i + 1), "score": i % 3} for i in range(24)]
    data = tmp_path / "pairs.json"
    data.write_text(json.dumps(rows))
    options = [option.format(peer[0]) for option in start]
    options += ["head=regress", "head.pair=true", "data.text=[a,b]"]
    options += ["target=score", "trainer.epochs=1", "report=false", f"run={tmp_path / 'run'}"]
    assert main(["train", str(data), *options]) == 0
    model = dxn.load(str(tmp_path / "run"))
    assert list(model.inputs) == ["a", "b"]
    assert isinstance(model.predict(a="Lima", b="York")["prediction"], float)
    with pytest.raises(UserError, match="no value of the input b"):
        model.predict(a="Lima")
    with exported(tmp_path / "run", tmp_path / "exported") as (_, answer):
        for a, b in itertools.product(("Lima", LONG), repeat=2):
            expected = model.predict(a=a, b=b)["prediction"]
            assert answer({"a": a, "b": b})["prediction"] == pytest.approx(expected, abs=1e-4)
        with pytest.raises(SystemExit, match="b: missing"):
            answer({"a": "Lima"})
