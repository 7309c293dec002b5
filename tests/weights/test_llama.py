"""Llama and the models with its names: logits and texts against those of transformers."""

import json
import random

import pytest
import torch
import transformers
from helpers.exhaustive import exhaustive_except
from helpers.reference import lively_writer, save_words
from helpers.runs import train
from helpers.saving import changed_and_saved, load_complete
from tokenizers import Tokenizer, processors

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.models import beam_search, generate
from dxn.models.decoding.language_model import LanguageModel
from dxn.weights import Checkpoint, read_public
from dxn.weights.families.language_models import LLAMA

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
VOCAB, NEW = 101, 64
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "intermediate_size": 44,
    "num_hidden_layers": 7,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 503.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 503.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA3 = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 7.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 503.0, "factor": 8.0},
}
QWEN2 = {"hidden_size": 48}
MODELS = {
    "Llama 3": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "Llama 2": ("Llama", {"num_key_value_heads": 6}),
    "Mistral": ("Mistral", {"sliding_window": 4}),
    "Mistral without windows": ("Mistral", {"sliding_window": None}),
    "Qwen 2": ("Qwen2", {**QWEN2, "rope_parameters": YARN}),
    "Qwen 2 with windows": (
        "Qwen2",
        {**QWEN2, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3},
    ),
    "Qwen 3": ("Qwen3", {"tie_word_embeddings": True}),
    "SmolLM 3": ("SmolLM3", {}),
    "OLMo 2": ("Olmo2", QWEN2),
    "Gemma": ("Gemma", {}),
    "Gemma 2": (
        "Gemma2",
        {"sliding_window": 4, "query_pre_attn_scalar": 5, "tie_word_embeddings": False},
    ),
    "Gemma 3": (
        "Gemma3Text",
        {
            "rope_parameters": GEMMA3,
            "sliding_window": 4,
            "query_pre_attn_scalar": 5,
            "tie_word_embeddings": False,
        },
    ),
}
PROMPTS = ["w5 w7 w11", "w3", "w90 w80 w70 w60 w50 w40 w30", "w13 w13 w17 w19"]


def save(folder, name, **options):
    """A model with random weights in the public format, and the model of transformers."""
    torch.manual_seed(0)
    kind, settings = MODELS[name]
    settings = settings | options
    sizes = {key: size for key, size in SIZES.items() if key not in settings}
    if kind in ("Qwen2", "Olmo2"):
        del sizes["head_dim"]  # it has no such setting
    config = getattr(transformers, f"{kind}Config")(**sizes, **settings)
    peer = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config)
    peer = lively_writer(peer).eval()
    peer.save_pretrained(folder)
    save_words(folder, VOCAB)
    return peer


def prompts_of(side):
    """Ids and mask of prompts of different lengths, padded on one side."""
    rows = [[int(word[1:]) for word in prompt.split()] for prompt in PROMPTS]
    longest = max(map(len, rows))
    padded = [[0] * (longest - len(r)) + r if side else r + [0] * (longest - len(r)) for r in rows]
    mask = [
        [0] * (longest - len(r)) + [1] * len(r) if side else [1] * len(r) + [0] * (longest - len(r))
        for r in rows
    ]
    return torch.tensor(padded), torch.tensor(mask)


# Changes of config.json with which transformers computes another function. None removes a key.
CHANGES = {
    "Llama 3": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "Qwen 2": {"rope_scaling": {"type": "yarn", "factor": 2.0}},
    "Gemma 3": {"rope_scaling": {"factor": 4.0}},
    "Gemma": {"hidden_act": "gelu", "hidden_activation": "gelu"},
    "SmolLM 3": {"use_sliding_window": True, "sliding_window": 5, "layer_types": None},
}


@pytest.mark.parametrize(
    ("name", "changes"), [*[(name, {}) for name in MODELS], *CHANGES.items()], ids=str
)
def test_logits_are_those_of_transformers(name, changes, tmp_path):
    peer = save(tmp_path, name)
    if changes:
        config = {**json.loads((tmp_path / "config.json").read_text()), **changes}
        write_config(tmp_path, {k: value for k, value in config.items() if value is not None})
        peer = type(peer).from_pretrained(tmp_path).eval()
    model = dxn.from_public(str(tmp_path), dtype="float32")
    language = LanguageModel(model.model)
    ids = torch.randint(3, VOCAB, (3, 23))
    mask = torch.arange(23) < torch.tensor([[23], [9], [14]])
    with torch.inference_mode():
        expected = peer(ids, mask.long()).logits
        torch.testing.assert_close(language(ids, mask)[mask], expected[mask], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", exhaustive_except(MODELS, "Gemma 3"))
def test_texts_are_those_of_transformers(name, tmp_path):
    peer = save(tmp_path, name)
    language = LanguageModel(dxn.from_public(str(tmp_path), dtype="float32").model)
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}
    left, left_mask = prompts_of(1)
    theirs = peer.generate(left, attention_mask=left_mask, **options)[:, left.shape[1] :].tolist()
    for ids, mask in ((left, left_mask), prompts_of(0)):
        ours = generate(language, None, prompt=ids, mask=mask > 0, end=None, max_new=NEW)
        assert [h.ids for h in ours] == theirs
    assert sum(len(set(row)) for row in theirs) > 40
    found = peer.generate(left, attention_mask=left_mask, num_beams=3, **options)
    ours = beam_search(
        language, None, prompt=left, mask=left_mask > 0, end=None, max_new=NEW, beams=3
    )
    assert [h.ids for h in ours] == found[:, left.shape[1] :].tolist()


def write_config(folder, config):
    (folder / "config.json").write_text(json.dumps(config))


OLD = {
    "hidden_size": 24,
    "intermediate_size": 44,
    "num_hidden_layers": 7,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
}
# config.json as transformers 4 wrote it, and options that follow from it.
OLD_FORMATS = [
    (
        {"model_type": "llama", "rope_theta": 5e5, "tie_word_embeddings": True}
        | {"rope_scaling": {k: v for k, v in LLAMA3.items() if k != "rope_theta"}},
        {"rope_theta": 5e5, "rope_scaling": ("llama3", 8.0, 16, 1.0, 4.0), "windows": [None]},
    ),
    (
        {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}}
        | {"tie_word_embeddings": True},
        {"rope_theta": 1e4, "rope_scaling": ("linear", 2.0, 128, None, None)},
    ),
    (
        {"model_type": "mistral", "sliding_window": 5, "tie_word_embeddings": True},
        {"windows": [4], "rope_theta": 1e4},
    ),
    (
        {"model_type": "mistral", "sliding_window": None, "tie_word_embeddings": True},
        {"windows": [None]},
    ),
    (
        {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 5}
        | {"tie_word_embeddings": True, "max_window_layers": 3},
        {"windows": [None]},
    ),
    (
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 5}
        | {"tie_word_embeddings": True, "max_window_layers": 3},
        {"windows": [None] * 3 + [4] * 4},
    ),
    ({"model_type": "smollm3"}, {"rope_blocks": [True] * 3 + [False], "rope_theta": 2e6}),
    ({"model_type": "gemma2", "sliding_window": 9}, {"windows": [8, None]}),
    (
        {"model_type": "gemma3_text", "sliding_window": 9, "sliding_window_pattern": 3}
        | {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": None},
        {"windows": [8, 8, None], "rope_theta": 1e6, "window_rope_theta": 1e4},
    ),
]


@pytest.mark.parametrize(("config", "expected"), OLD_FORMATS)
def test_a_config_of_an_older_version_is_read(config, expected):
    checkpoint = Checkpoint("x", {}, config={**OLD, **config})
    position = LLAMA.architecture(checkpoint).backbone["position"]
    if "rope_scaling" in expected:
        names = ("kind", "factor", "original_len", "low", "high")
        assert tuple(map(position["rope_scaling"].get, names)) == expected.pop("rope_scaling")
    assert {key: position[key] for key in expected} == expected


UNSUPPORTED = [
    ({"attention_bias": True}, "attention_bias=True in a model of the Llama family"),
    ({"mlp_bias": True}, "mlp_bias=True"),
    ({"hidden_act": "relu"}, "the activation function 'relu'"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "the rotary frequencies .*dynamic"),
    ({"rope_parameters": {"rope_type": "longrope"}}, "the rotary frequencies .*longrope"),
    (
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "mrope_section": [3]}},
        "the rotary frequencies .*mrope_section",
    ),
    ({"layer_types": ["chunked_attention"]}, "the kind of attention 'chunked_attention'"),
    ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidir"),
]


@pytest.mark.parametrize(("config", "message"), UNSUPPORTED)
def test_a_setting_without_an_equivalent_is_refused(config, message):
    config = {**OLD, "model_type": "llama", "tie_word_embeddings": True, **config}
    with pytest.raises(UserError, match=f"^weights: x: dxn does not support {message}"):
        LLAMA.architecture(Checkpoint("x", {}, config=config))


def test_an_output_layer_with_values_of_its_own_is_used_although_the_file_says_tied(tmp_path):
    peer = save(tmp_path, "Llama 2")
    config = json.loads((tmp_path / "config.json").read_text())
    write_config(tmp_path, {**config, "tie_word_embeddings": True})
    model = dxn.from_public(str(tmp_path), dtype="float32")
    ids = torch.randint(3, VOCAB, (3, 23))
    with torch.inference_mode():
        found = LanguageModel(model.model)(ids, torch.ones_like(ids) > 0)
        torch.testing.assert_close(found, peer(ids).logits, rtol=0, atol=1e-4)


def test_a_model_without_its_output_layer_is_refused(tmp_path):
    save(tmp_path, "Qwen 3")
    config = json.loads((tmp_path / "config.json").read_text())
    write_config(tmp_path, {**config, "tie_word_embeddings": False})
    with pytest.raises(UserError, match=r"Llama, but neither .* contain 'lm_head.weight'"):
        read_public(str(tmp_path))


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "intermediate_size"])
def test_a_config_without_the_sizes_of_its_tensors_is_refused(key, tmp_path):
    save(tmp_path, "Qwen 3")
    config = json.loads((tmp_path / "config.json").read_text())
    del config[key]
    write_config(tmp_path, config)
    with pytest.raises(UserError, match=r"has the shape .*, but the model's"):
        dxn.from_public(str(tmp_path))


def test_a_classifier_has_the_outputs_of_transformers(tmp_path):
    torch.manual_seed(0)
    config = transformers.Qwen3Config(**SIZES, num_labels=3)
    peer = lively_writer(transformers.Qwen3ForSequenceClassification(config)).eval()
    peer.save_pretrained(tmp_path)
    save_words(tmp_path, VOCAB)
    model = dxn.from_public(str(tmp_path), dtype="float32")
    assert model.task.name == "classify"
    ids, mask = prompts_of(0)
    with torch.inference_mode():
        expected = peer(ids, mask).logits.softmax(-1)
    found = model.predict([{"text": prompt} for prompt in PROMPTS])
    for row, probs in zip(found, expected.tolist(), strict=True):
        assert row["probabilities"] == pytest.approx(
            {f"LABEL_{i}": p for i, p in enumerate(probs)}, abs=1e-4
        )


def add_begin(folder, extra=()):
    """Let the tokenizer add a token before a text, as those of Llama and Gemma do."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["w1", "w2", *extra])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="w1 $A w2", special_tokens=[("w1", 1), ("w2", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def test_a_prompt_starts_with_the_begin_token_and_has_no_end_token(tmp_path):
    peer = save(tmp_path, "Gemma")
    add_begin(tmp_path, ["image"])  # the model has no row for it
    model = dxn.from_public(str(tmp_path), dtype="float32")
    (text,) = model.write(prompt="w5 w7", max_new=9)
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    found = peer.generate(torch.tensor([[1, 5, 7]]), **options)[0, 1:].tolist()
    assert text == " ".join(f"w{i}" for i in found if i not in (1, 2))
    assert text.startswith("w5 w7 ")
    (text,) = model.write(prompt="", max_new=9)
    found = peer.generate(torch.tensor([[1]]), **options)[0, 1:].tolist()
    assert text == " ".join(f"w{i}" for i in found if i not in (1, 2))


def test_bf16_weights_stay_bf16(tmp_path):
    peer = save(tmp_path / "float32", "Gemma 3").bfloat16()
    peer.save_pretrained(tmp_path)
    save_words(tmp_path, VOCAB)
    model = dxn.from_public(str(tmp_path), dtype="bf16")
    name = "model.layers.0.input_layernorm.weight"
    found = model.model.state_dict()["backbone.blocks.0.attn_norm.weight"]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, peer.state_dict()[name])
    ids, mask = prompts_of(0)
    with torch.inference_mode():
        expected = peer(ids, mask).logits
        actual = LanguageModel(model.model)(ids, mask > 0)
    real = mask > 0
    error = (actual[real].float() - expected[real].float()).abs().mean()
    assert error < 0.05 * expected[real].float().std()


TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["Llama 3", "Gemma 2"])
def test_fine_tuning_has_the_losses_of_transformers(name, tmp_path):
    """50 steps of AdamW with a batch of all conversations, and clipped gradients."""
    peer = save(tmp_path, name).train()
    draw = random.Random(0)
    counts = [draw.randrange(4, 12) for _ in range(8)]
    chats = [[f"w{draw.randrange(3, VOCAB)}" for _ in range(count)] for count in counts]
    config = {"bos_token": "w1", "eos_token": " w2 ", "chat_template": TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    rows = []
    for words in chats:
        parts = {"user": " " + " ".join(words[:3]), "assistant": " ".join(words[3:])}
        messages = [{"role": role, "content": content} for role, content in parts.items()]
        rows.append({"messages": messages})
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train(
        tmp_path / "run",
        *("head=language", "adapters=[text]", f"weights={tmp_path}"),
        *(f"data.train={path}", f"data.validation={path}", "batch_size=8", "trainer.epochs=50"),
        *("trainer.precision=float32", "trainer.device=cpu", "trainer.patience=0"),
        *("optimizer.lr=3e-4", "optimizer.weight_decay=0", "scheduler=constant"),
        *(
            "scheduler.warmup=0",
            "optimizer.eps=1e-5",
        ),
    )
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ours = [json.loads(line)["train/epoch_loss"] for line in lines]

    ids = torch.zeros(8, 16, dtype=torch.long)
    labels = torch.full((8, 16), -100)
    for i, words in enumerate(chats):
        numbers = [int(word[1:]) for word in words]
        row = [1, *numbers[:3], 2, *numbers[3:], 2]
        ids[i, : len(row)] = torch.tensor(row)
        labels[i, 5 : len(row)] = ids[i, 5 : len(row)]
    mask = torch.arange(16) < torch.tensor([[len(words) + 3] for words in chats])
    # With a larger eps, the sign of a gradient of about zero has no effect on the first steps.
    options = {"lr": 3e-4, "betas": (0.9, 0.98), "eps": 1e-5, "weight_decay": 0}
    optimizer = torch.optim.AdamW(peer.parameters(), **options)
    theirs = []
    for _ in range(50):
        loss = peer(ids, mask.long(), labels=labels).loss
        theirs.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimizer.step()
    assert theirs[-1] < theirs[0] - 0.5
    assert ours == pytest.approx(theirs, abs=1e-3)


def test_the_command_continues_a_prompt_and_max_len_of_a_training_is_limited(tmp_path, capsys):
    peer = save(tmp_path / "public", "Qwen 3", max_position_embeddings=40_960)
    words = [f"weights={tmp_path / 'public'}", "prompt=w5 w7", "max_new=9", "top_k=1"]
    assert main(["generate", *words, "dtype=float32"]) == 0
    found = peer.generate(torch.tensor([[5, 7]]), max_new_tokens=9, do_sample=False)[0].tolist()
    expected = found[: found.index(2)] if 2 in found else found
    assert capsys.readouterr().out.strip() == " ".join(f"w{i}" for i in expected)
    (tmp_path / "text.txt").write_text("w5 w7 w11 w13 w17\n" * 60)
    words = ["data=text", f"data.path={tmp_path / 'text.txt'}", "adapters=[text]", "head=language"]
    words += [f"weights={tmp_path / 'public'}", "trainer.epochs=1", "trainer.device=cpu"]
    train(tmp_path / "run", *words)
    tokenizer = dxn.load(tmp_path / "run").model.adapters["text"].tokenizer
    assert tokenizer.max_len == 2048


@pytest.mark.parametrize("name", exhaustive_except(MODELS, "Llama 3", "OLMo 2", "Gemma 3"))
def test_a_changed_model_is_loaded_by_transformers(name, tmp_path):
    before = save(tmp_path, name)
    model, folder = changed_and_saved(tmp_path)
    peer = load_complete(type(before), folder)
    ids = torch.randint(VOCAB, (3, 23), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        logits = LanguageModel(model.model)(ids, torch.ones_like(ids, dtype=torch.bool))
        torch.testing.assert_close(peer(ids).logits, logits, rtol=0, atol=1e-4)
        assert (before(ids).logits - logits).abs().max() > 0.1
