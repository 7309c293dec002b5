"""Models of sentence-transformers: the modules of the folder decide how an embedding is made."""

import json

import numpy as np
import pytest
import torch
import transformers
from helpers.checkpoints import assert_refused
from safetensors.torch import load_file, save_file

import dxn
from dxn.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
TEXTS = ["Red shoes", "a man is eating food now", "the market"]
WORDS = [
    *("red", "shoes", "a", "man", "is", "eating", "food"),
    *("now", "the", "market", "query", "find", "Red", "Shoes", ":"),
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
DIM = 12
LIBRARY = "sentence_transformers.models"
TANH = "torch.nn.modules.activation.Tanh"
LINEAR = "torch.nn.modules.linear.Identity"
PROMPTS = {"query": "find : ", "document": "", "other": "query : "}


def save_encoder(folder, *, kind="bert"):
    """Save an encoder with random weights and the tokenizer of some words."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]))
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=False)
    sizes = {"hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 20, "max_position_embeddings": 16, "vocab_size": len(tokenizer)}
    if kind == "distilbert":
        sizes = {"dim": DIM, "n_layers": 2, "n_heads": 2, "hidden_dim": 20, "vocab_size": 32}
        sizes["max_position_embeddings"] = 16
    ids = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3}
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(kind, **sizes, **ids)
    model = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def save_model(folder, *, pooling, dense=(), normalize=True, inner="", **settings):
    """Save an encoder with modules.json; `dense` has the sizes and activations of its layers."""
    save_encoder(folder / inner)
    names = ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * normalize]
    paths = [inner, *(f"{i}_{name}" for i, name in enumerate(names) if i)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{LIBRARY}.{name}"}
        for i, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    write(folder / "modules.json", modules)
    write(folder / "1_Pooling" / "config.json", pooling)
    for i, (shape, activation) in enumerate(dense, 2):
        path = folder / f"{i}_Dense"
        write(path / "config.json", {"bias": False, "activation_function": activation})
        save_file({"linear.weight": torch.randn(shape)}, path / "model.safetensors")
    if settings:
        write(folder / inner / "sentence_bert_config.json", settings)
    return folder


def hidden(folder, text, *, length=16):
    """Return the vectors (N, D) of the tokens of a text, as transformers computes them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, truncation=True, max_length=length, return_tensors="pt")
    with torch.inference_mode():
        return transformers.AutoModel.from_pretrained(folder)(**ids).last_hidden_state[0].numpy()


def embedded(tmp_path, texts, *options):
    """Return the vectors that `dxn embed` writes."""
    (tmp_path / "texts.csv").write_text("\n".join(["text", *texts]))
    output = tmp_path / "vectors.npy"
    args = [f"input={tmp_path / 'texts.csv'}", f"output={output}", "dtype=float32", *options]
    assert main(["embed", *args]) == 0
    return np.load(output)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def weighted(x):
    weights = np.arange(1, len(x) + 1)[:, None]
    return (x * weights).sum(0) / weights.sum()


POOLINGS = {
    "cls": ("pooling_mode_cls_token", lambda x: x[0]),
    "max": ("pooling_mode_max_tokens", lambda x: x.max(0)),
    "mean": ("pooling_mode_mean_tokens", lambda x: x.mean(0)),
    "mean_sqrt_len_tokens": (
        "pooling_mode_mean_sqrt_len_tokens",
        lambda x: x.sum(0) / np.sqrt(len(x)),
    ),
    "weightedmean": ("pooling_mode_weightedmean_tokens", weighted),
    "lasttoken": ("pooling_mode_lasttoken", lambda x: x[-1]),
}


@pytest.mark.parametrize("name", POOLINGS)
def test_the_pooling_is_that_of_the_folder(name, tmp_path):
    key, pool = POOLINGS[name]
    save_model(tmp_path / "m", pooling={key: True}, normalize=False)
    expected = [pool(hidden(tmp_path / "m", text)) for text in TEXTS]
    vectors = embedded(tmp_path, TEXTS, f"weights={tmp_path / 'm'}")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_a_column_with_any_name_is_embedded_and_a_choice_is_asked_for(tmp_path, capsys):
    folder = save_model(tmp_path / "m", pooling={"pooling_mode": "mean"})
    vectors = embedded(tmp_path, TEXTS, f"weights={folder}")
    path, output = tmp_path / "table.csv", tmp_path / "vectors.npy"
    command = ["embed", f"weights={folder}", f"input={path}", f"output={output}", "dtype=float32"]
    answers = [f"{text} is the answer" for text in TEXTS]
    columns = {"price": ["1.5", "2", "4"], "review": TEXTS, "answer": answers}
    for names, option, error in [
        ("price review", "", ""),
        ("price answer review", "columns.text=review", ""),
        ("price answer review", "", "columns that fit text: answer, review; choose, for example"),
        ("price", "", "no column fits an input of this model (text); not used: price (numbers)"),
        ("price", "columns.txt=price", "columns.txt: must be an input of this model"),
    ]:
        lines = zip(*(columns[name] for name in names.split()), strict=True)
        path.write_text("\n".join([names.replace(" ", ","), *map(",".join, lines)]))
        assert main([*command, *filter(None, [option])]) == (2 if error else 0)
        assert error in capsys.readouterr().err
        if not error:
            np.testing.assert_allclose(np.load(output), vectors, atol=1e-5)


def test_all_modules_and_settings_of_the_texts_have_an_effect(tmp_path):
    folder = save_model(
        tmp_path / "m",
        pooling={"pooling_mode": [*POOLINGS]},
        dense=[((9, 6 * DIM), LINEAR), ((7, 9), TANH)],
        inner="0_Transformer",
        max_seq_length=5,
        do_lower_case=True,
    )
    inner = folder / "0_Transformer"
    first, second = (load_file(p)["linear.weight"] for p in sorted(folder.glob("*/model.s*"))[1:])
    pooled = []
    for text in TEXTS:
        x = hidden(inner, text.lower(), length=5)
        pooled.append(np.concatenate([pool(x) for _, pool in POOLINGS.values()]))
    expected = unit(np.tanh(np.stack(pooled) @ first.T.numpy() @ second.T.numpy()))
    vectors = embedded(tmp_path, TEXTS, f"weights={folder}")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_prompts_are_used_as_the_folder_says_and_can_be_chosen(tmp_path, capsys):
    folder = save_model(tmp_path / "m", pooling={"pooling_mode": "mean"})
    settings = folder / "config_sentence_transformers.json"
    write(settings, {"prompts": PROMPTS, "default_prompt_name": None})
    means = {
        prompt: unit([hidden(folder, prompt + text).mean(0) for text in TEXTS])
        for prompt in PROMPTS.values()
    }
    vectors = embedded(tmp_path, TEXTS, f"weights={folder}")
    np.testing.assert_allclose(vectors, means[""], atol=1e-5)
    assert "no prompt is before the texts; choose one" in capsys.readouterr().err
    vectors = embedded(tmp_path, TEXTS, f"weights={folder}", "weights.prompt=other")
    np.testing.assert_allclose(vectors, means["query : "], atol=1e-5)
    # An index has the prompt of documents, and a search that of queries.
    index = tmp_path / "index"
    write(settings, {"prompts": PROMPTS, "default_prompt_name": "other"})
    main(["index", f"weights={folder}", f"input={tmp_path / 'texts.csv'}", f"output={index}"])
    np.testing.assert_allclose(np.load(index / "vectors.npy"), means[""], atol=1e-5)
    found = tmp_path / "found.csv"
    assert main(["search", f"index={index}", "input.text=the market", f"output={found}"]) == 0
    score = float(found.read_text().splitlines()[1].split(",")[1])
    assert score == pytest.approx(float((means[""] @ means["find : "][2]).max()), abs=1e-3)
    # The default prompt, also for one text.
    model = dxn.from_public(str(folder), dtype="float32")
    np.testing.assert_allclose(model.embed(text=TEXTS[1]), means["query : "][1], atol=1e-5)
    assert (
        model.tokens(text="red").spans[-1].coords[0, 3:, 0].tolist()[0] == 0
    )  # of the text itself
    assert main(["embed", f"weights={folder}", "weights.prompt=no", "input.text=x"]) == 2
    assert "must be one of the prompts" in capsys.readouterr().err
    write(folder / "1_Pooling" / "config.json", {"pooling_mode": "mean", "include_prompt": False})
    assert_refused(folder, f"{folder}: dxn does not support a pooling without the prompt")


def test_a_fine_tuned_model_keeps_the_pooling_and_the_prompt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = save_model(tmp_path / "m", pooling={"pooling_mode": ["lasttoken", "mean"]})
    settings = {"prompts": PROMPTS, "default_prompt_name": "query"}
    write(folder / "config_sentence_transformers.json", settings)
    rows = [f"{text},{i % 2}" for i, text in enumerate(TEXTS * 8)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]))
    options = ["data.target=label", f"weights={folder}", "preset=plain", "baseline=none"]
    options += ["trainer.epochs=1", "report=false", "finetune.freeze=all", "output=run"]
    assert main(["train", "train.csv", *options]) == 0
    x = [hidden(folder, PROMPTS["query"] + text) for text in TEXTS]
    expected = [np.concatenate([v[-1], v.mean(0)]) for v in x]
    np.testing.assert_allclose(embedded(tmp_path, TEXTS, "run=run"), expected, atol=1e-4)
    assert main(["embed", "run=run", "weights.prompt=query", "input.text=x"]) == 2


REFUSED = {
    "another module": (
        {"type": f"{LIBRARY}.LSTM", "path": "2_LSTM"},
        "dxn does not support these modules of sentence-transformers",
    ),
    "code of the folder": ({"type": "custom.Layer", "path": "2_X"}, "dxn does not support these"),
    "a folder elsewhere": (
        {"type": f"{LIBRARY}.Normalize", "path": "../2_X"},
        "path must be the name of a folder beside it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_modules_that_dxn_does_not_know_are_refused(case, tmp_path):
    module, message = REFUSED[case]
    folder = save_model(tmp_path / "m", pooling={}, normalize=False)
    path = folder / "modules.json"
    write(path, [*json.loads(path.read_text()), module])
    text = assert_refused(folder, f"{path}: {message}")
    assert "LSTM" in text or case != "another module"


def test_settings_that_dxn_does_not_compute_are_refused(tmp_path):
    folder = save_model(tmp_path / "m", pooling={"pooling_mode": "mean"}, dense=[((3, 12), TANH)])
    dense = folder / "2_Dense"
    weight = load_file(dense / "model.safetensors")
    for content in ({"use_residual": True}, {"activation_function": "torch.nn.SiLU"}):
        write(dense / "config.json", {"bias": False, **content})
        assert_refused(folder, f"{dense}: dxn does not support ")
    write(dense / "config.json", {"bias": True})
    assert_refused(folder, f"{dense}: its weights must have linear.weight and linear.bias")
    save_file({**weight, "linear.bias": torch.zeros(3)}, dense / "model.safetensors")
    write(folder / "1_Pooling" / "config.json", {"pooling_mode": "median"})
    assert_refused(folder, f"{folder / '1_Pooling'}: dxn does not support the pooling 'median'")


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_an_encoder_without_modules_and_head_has_the_mean_of_its_tokens(kind, tmp_path):
    folder = save_encoder(tmp_path / "m", kind=kind)
    expected = [hidden(folder, text).mean(0) for text in TEXTS]
    vectors = embedded(tmp_path, TEXTS, f"weights={folder}")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert main(["embed", f"weights={folder}", "weights.prompt=query", "input.text=x"]) == 2
