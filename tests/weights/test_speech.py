"""wav2vec 2.0 and HuBERT against transformers: sounds of several lengths, one by one and padded."""

import base64
import io
import json

import numpy as np
import pytest
import soundfile
import torch
import transformers
from helpers.checkpoints import assert_refused, change_tensors
from helpers.exhaustive import exhaustive_except
from helpers.newcomer import printed
from helpers.peers import cases
from helpers.saving import changed_and_saved, load_complete
from helpers.serving import client_of
from safetensors.torch import load_file, save_file

import dxn
from dxn.core.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")

RATE = 16000
# The kernels and strides of the real models. Otherwise different primes.
SIZES = {
    "hidden_size": 34,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 37,
    "conv_dim": [11, 13, 7, 7, 7, 7, 13],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 5,
    "num_labels": 7,
}
LARGE = {"feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True}
KINDS = {
    "wav2vec 2.0, base": ("Wav2Vec2", {}),
    "wav2vec 2.0, large": ("Wav2Vec2", LARGE),
    "HuBERT, base": ("Hubert", {"feat_proj_layer_norm": False}),
    "HuBERT, large": ("Hubert", {**LARGE, "num_conv_pos_embeddings": 17}),
}
VOCABULARY = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETA'", "<x>"]
# Samples, with the level of the noise: one token, and odd numbers.
CLIPS = [(400, 0.5), (4999, 0.01), (16000, 0.1), (12345, 0.001), (799, 0.2)]
TOLERANCE = 5e-5


def clips():
    rand = np.random.default_rng(0)
    return [rand.normal(0.1, level, length).astype(np.float32) for length, level in CLIPS]


def save_peer(name, cls, folder, **options):
    """Save a model of transformers with its vocabulary and its feature extractor; return both."""
    kind, variant = KINDS[name]
    config = getattr(transformers, f"{kind}Config")(
        **{**SIZES, "vocab_size": len(VOCABULARY), **variant, **options}
    )
    torch.manual_seed(0)
    peer = cases.randomize(getattr(transformers, f"{kind}{cls}")(config))
    peer.save_pretrained(folder)
    extractor = transformers.Wav2Vec2FeatureExtractor()
    extractor.save_pretrained(folder)
    if cls == "ForCTC":
        ids = {token: i for i, token in enumerate(VOCABULARY)}
        (folder / "vocab.json").write_text(json.dumps(ids))
    return peer, extractor


@torch.inference_mode()
def outputs_of(peer, extractor):
    """The output of the peer for each clip alone, because it reads padding as silence."""
    results = []
    for sound in clips():
        values = extractor(sound, sampling_rate=RATE, return_tensors="pt").input_values
        results.append(next(iter(peer(values).values()))[0])
    return results


@torch.inference_mode()
def model_outputs(folder, sounds):
    """The encoded tokens and the output of the head of dxn's model for a batch of sounds."""
    model = dxn.from_public(str(folder)).model
    adapter = model.adapter("audio")
    raws = [adapter.tokenizer.reader.read((sound, RATE)) for sound in sounds]
    batch = {"#size": len(raws), "audio": adapter.tokenizer.batch(raws)}
    batch["audio"]["rows"] = torch.arange(len(raws))
    encoded, pooled = model.encode(model.embed(batch))
    return encoded, model.head(encoded, pooled, batch) if hasattr(model.head, "out") else pooled


@pytest.mark.parametrize("name", KINDS)
def test_tokens_equal_those_of_transformers_alone_and_in_a_padded_batch(name, tmp_path):
    expected = outputs_of(*save_peer(name, "Model", tmp_path))
    encoded, _ = model_outputs(tmp_path, clips())
    for i, (sound, hidden) in enumerate(zip(clips(), expected, strict=True)):
        alone, _ = model_outputs(tmp_path, [sound])
        assert alone.mask.all() and int(encoded.mask[i].sum()) == len(hidden)
        torch.testing.assert_close(alone.x[0], hidden, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(encoded.x[i, : len(hidden)], hidden, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", exhaustive_except(KINDS, "wav2vec 2.0, base", "HuBERT, large"))
def test_classifiers_equal_those_of_transformers(name, tmp_path):
    expected = outputs_of(*save_peer(name, "ForSequenceClassification", tmp_path))
    _, logits = model_outputs(tmp_path, clips())
    torch.testing.assert_close(logits, torch.stack(expected), atol=TOLERANCE, rtol=0)
    answer = dxn.from_public(str(tmp_path)).predict(audio=(clips()[2], RATE))
    probabilities = torch.tensor(list(answer["probabilities"].values()))
    torch.testing.assert_close(probabilities, expected[2].softmax(0), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", exhaustive_except(KINDS, "wav2vec 2.0, base", "HuBERT, large"))
def test_transcripts_equal_those_of_transformers(name, tmp_path):
    peer, extractor = save_peer(name, "ForCTC", tmp_path)
    with torch.no_grad():  # so that the transcripts have all characters
        peer.lm_head.bias -= torch.cat(outputs_of(peer, extractor)).mean(0)
    peer.save_pretrained(tmp_path)
    expected = outputs_of(peer, extractor)
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"))
    texts = [tokenizer.decode(logits.argmax(-1)) for logits in expected]
    assert len(set("".join(texts))) > 5
    _, logits = model_outputs(tmp_path, clips())
    for row, alone in zip(logits, expected, strict=True):
        torch.testing.assert_close(row[: len(alone)], alone, atol=TOLERANCE, rtol=0)
    model = dxn.from_public(str(tmp_path))
    answers = model.predict([{"audio": (sound, RATE)} for sound in clips()])
    assert [answer["prediction"] for answer in answers] == texts
    file = io.BytesIO()
    soundfile.write(file, clips()[2], RATE, format="WAV", subtype="FLOAT")
    with client_of(model) as client:
        encoded = {"base64": base64.b64encode(file.getvalue()).decode()}
        response = client.post("/predict", json={"inputs": {"audio": encoded}})
    assert response.status_code == 200, response.text
    assert response.json()["results"][0]["prediction"] == texts[2], response.text


def test_a_model_without_normalization_and_with_the_old_names_of_weight_norm(tmp_path):
    peer, _ = save_peer("wav2vec 2.0, large", "Model", tmp_path)
    path = tmp_path / "model.safetensors"
    old = {"original0": "g", "original1": "v"}
    state = {}
    for key, tensor in load_file(path).items():
        start, _, end = key.rpartition(".")
        is_normed = end in old
        start = start.removesuffix(".parametrizations.weight")
        state[f"{start}.weight_{old[end]}" if is_normed else key] = tensor
    assert len([key for key in state if key.endswith(("weight_g", "weight_v"))]) == 2
    save_file(state, path, {"format": "pt"})
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=False)
    extractor.save_pretrained(tmp_path)
    expected = outputs_of(peer, extractor)
    encoded, _ = model_outputs(tmp_path, clips())
    for i, hidden in enumerate(expected):
        torch.testing.assert_close(encoded.x[i, : len(hidden)], hidden, atol=TOLERANCE, rtol=0)


def test_a_checkpoint_of_pretraining_has_tokens(tmp_path):
    peer, extractor = save_peer("wav2vec 2.0, base", "ForPreTraining", tmp_path)
    expected = outputs_of(peer.wav2vec2, extractor)
    encoded, _ = model_outputs(tmp_path, clips())
    torch.testing.assert_close(encoded.x[2], expected[2], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("length", [1, 399])
def test_a_sound_that_is_shorter_than_a_token_is_followed_by_silence(length, tmp_path):
    peer, _ = save_peer("wav2vec 2.0, base", "Model", tmp_path)
    sound = np.random.default_rng(0).normal(0, 0.1, length).astype(np.float32)
    adapter = dxn.from_public(str(tmp_path)).model.adapter("audio")
    values = adapter.tokenizer(torch.from_numpy(sound))["features"][:, 0]
    padded = torch.nn.functional.pad(values, (0, 400 - length))
    with torch.inference_mode():
        expected = peer(padded[None]).last_hidden_state[0]
    for sounds in ([sound], [sound, clips()[2]]):
        encoded, _ = model_outputs(tmp_path, sounds)
        assert int(encoded.mask[0].sum()) == 1
        torch.testing.assert_close(encoded.x[0, :1], expected, atol=TOLERANCE, rtol=0)


NO = "dxn does not support"
REFUSED = [
    ({"add_adapter": True}, f"{NO} layers that shorten the output (add_adapter)"),
    ({"adapter_attn_dim": 16}, f"{NO} layers of single languages (adapter_attn_dim)"),
    ({"use_weighted_layer_sum": True}, f"{NO} a weighted sum of the blocks"),
    ({"hidden_act": "tanh"}, f"{NO} the activation function 'tanh'"),
    ({"layer_norm_eps": 1e-6}, f"{NO} layer_norm_eps=1e-06, only 1e-05"),
    ({"feat_extract_activation": "relu"}, f"{NO} feat_extract_activation=relu, only gelu"),
    ({"pad_token_id": 10}, f"{NO} pad_token_id=10 of 10 outputs, which is the blank"),
    ({"conv_kernel": [3, 3]}, "one number per convolution, got 7, 2 and 7 numbers"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=lambda v: str(v)[:30])
def test_a_feature_that_dxn_does_not_have_is_refused(changes, message, tmp_path):
    save_peer("wav2vec 2.0, base", "ForCTC", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(UserError) as caught:
        dxn.from_public(str(tmp_path))
    assert message in str(caught.value)


def test_the_files_of_a_processor_are_read(tmp_path):
    peer, _ = save_peer("wav2vec 2.0, large", "ForCTC", tmp_path)
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=False)
    (tmp_path / "preprocessor_config.json").unlink()
    path = tmp_path / "vocab.json"
    path.write_text(path.read_text().replace('"|"', '"#"').replace("</s>", "|"))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(
        str(path), word_delimiter_token="#", eos_token="|", do_lower_case=True
    )
    with torch.no_grad():
        peer.lm_head.bias -= torch.cat(outputs_of(peer, extractor)).mean(0)
    peer.save_pretrained(tmp_path)
    transformers.Wav2Vec2Processor(extractor, tokenizer).save_pretrained(tmp_path)
    texts = [tokenizer.decode(each.argmax(-1)) for each in outputs_of(peer, extractor)]
    model = dxn.from_public(str(tmp_path))
    answers = model.predict([{"audio": (sound, RATE)} for sound in clips()])
    assert [answer["prediction"] for answer in answers] == texts
    assert "|" in "".join(texts) and " " in "".join(texts)


@pytest.mark.parametrize("token", ['{"content": "|"}', "[3]", "null", "7"])
def test_any_word_delimiter_in_the_settings_is_read(token, tmp_path):
    save_peer("wav2vec 2.0, base", "ForCTC", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(f'{{"word_delimiter_token": {token}}}')
    assert dxn.from_public(str(tmp_path)).labels[4] == (" " if "|" in token else "|")


def test_vocabularies_of_phonemes_or_languages_are_refused(tmp_path):
    save_peer("wav2vec 2.0, base", "ForCTC", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "Wav2Vec2PhonemeCTCTokenizer"}'
    )
    assert_refused(tmp_path, f"{tmp_path}: {NO} vocabularies of phonemes")
    (tmp_path / "vocab.json").write_text('{"eng": {"a": 5}}')
    assert_refused(tmp_path, f"{tmp_path}: {NO} vocabularies of several languages in vocab.json")


def test_a_damaged_weight_norm_is_refused(tmp_path):
    save_peer("wav2vec 2.0, base", "Model", tmp_path)
    name = "encoder.pos_conv_embed.conv.parametrizations.weight.original0"
    change_tensors(tmp_path, **{name: torch.ones(1, 1, 5)})
    with pytest.raises(UserError, match=r"original0 .* cannot be converted, got the shapes"):
        dxn.from_public(str(tmp_path))


# The command line


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speech")
    lines = ["audio,text,word,split"]
    for i, sound in enumerate(4 * clips()):
        soundfile.write(folder / f"{i}.wav", np.resize(sound, 5000 + 100 * i), RATE)
        split = ["train", "train", "train", "validation", "test"][i % 5]
        lines.append(f"{i}.wav,{['tea', 'eat it', 'a tee'][i % 3]},{'ab'[i % 2]},{split}")
    (folder / "t.csv").write_text("\n".join(lines))
    return folder / "t.csv"


OPTIONS = ["data.audio=audio", "adapters=[audio]", "trainer.epochs=1", "baseline=none"]


def test_transcripts_are_predicted_and_fine_tuned_by_the_command_line(
    table, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "peer"
    folder.mkdir()
    save_peer("wav2vec 2.0, base", "ForCTC", folder)
    sound = str(table.parent / "2.wav")
    out = printed(capsys, "predict", f"weights={folder}", f"input.audio={sound}")
    text = dxn.from_public(str(folder)).predict(audio=sound)["prediction"]
    assert out == f"prediction: {text}\n"
    # The vocabulary lacks the letter i: it is replaced.
    words = ["train", str(table), "target=text", "head=ctc", f"weights={folder}", *OPTIONS]
    out = printed(capsys, *words, "name=other")
    assert "the head for 10 classes is replaced by a new one for the targets" in out
    table.write_text(table.read_text().replace("eat it", "eat"))
    out = printed(capsys, *words, "name=same")
    assert "is replaced" not in out and "wer" in out and "classes are rare" not in out
    (run,) = (tmp_path / "outputs" / "same").iterdir()
    assert dxn.load(run).labels == ("", "<s>", "</s>", "<unk>", " ", *"ETA'", "<x>")
    out = printed(capsys, "predict", f"run={run}", f"input.audio={sound}")
    assert out == f"prediction: {dxn.load(run).predict(audio=sound)['prediction']}\n"
    out = printed(capsys, "evaluate", f"run={run}")
    assert "cer" in out
    # A trained run can be trained again, with its vocabulary.
    words[4] = f"weights={run}"
    assert "the head is not used" not in printed(capsys, *words, "name=again")


def test_a_classifier_learns_from_frozen_tokens_by_the_command_line(
    table, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "peer"
    folder.mkdir()
    save_peer("HuBERT, base", "Model", folder)
    words = ["train", str(table), "target=word", f"weights={folder}", *OPTIONS]
    out = printed(capsys, *words, "finetune.freeze=all")
    # Two classes with 34 features and a bias, and what only masked pretraining uses.
    assert "trained: 104" in out, out
    (run,) = (tmp_path / "outputs" / "word").iterdir()
    probabilities = dxn.load(run).predict(audio=str(table.parent / "2.wav"))["probabilities"]
    assert set(probabilities) == {"a", "b"}


@pytest.mark.parametrize("name", exhaustive_except(KINDS, "wav2vec 2.0, base", "HuBERT, large"))
def test_a_changed_model_of_transcripts_is_loaded_by_transformers(name, tmp_path):
    before, extractor = save_peer(name, "ForCTC", tmp_path)
    _, folder = changed_and_saved(tmp_path)
    peer = load_complete(type(before), folder)
    _, logits = model_outputs(folder, clips())
    expected = outputs_of(peer, extractor)
    old = outputs_of(before, extractor)
    for row, alone, other in zip(logits, expected, old, strict=True):
        torch.testing.assert_close(row[: len(alone)], alone, atol=TOLERANCE, rtol=0)
        assert (alone - other).abs().max() > 0.01
