"""Whisper: the texts of sounds against those of transformers, and what a run keeps."""

import itertools
import json

import numpy as np
import pytest
import soundfile
import torch
import transformers
from helpers.exhaustive import exhaustive_except
from helpers.runs import train
from helpers.saving import changed_and_saved, load_complete
from helpers.whisper import IDS, RATE, SECONDS, WORDS, features, noises, save_whisper

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.models import Memory

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
NEW = 64
SOUNDS = (1.3, 0.4, 2.0, 0.01, 1.9)


def words(ids):
    return " ".join(f"w{i}" for i in ids.tolist() if i < min(IDS.values()))


def written(peer, folder, sounds, **options):
    """The texts of transformers."""
    # Otherwise, its beam search stops before it has found the best text.
    options |= {"early_stopping": "never"} if options.get("num_beams", 1) > 1 else {}
    with torch.inference_mode():
        ids = peer.generate(features(folder, sounds), max_new_tokens=NEW, **options)
    return [words(row) for row in ids]


def loaded(folder, **head):
    return dxn.from_public(str(folder), dtype="float32", head=head)


def texts_of(model, sounds):
    answers = model.predict([{"audio": (sound, RATE)} for sound in sounds])
    return [answer["prediction"] for answer in answers]


def test_logits_are_those_of_transformers(tmp_path):
    peer = save_whisper(tmp_path)
    sounds = noises(*SOUNDS)
    model = loaded(tmp_path)
    ids = torch.randint(0, 90, (len(sounds), 13))
    samples = model.samples([{"audio": (sound, RATE)} for sound in sounds])
    batch = samples.collate([samples[0, i] for i in range(len(samples))])
    with torch.inference_mode():
        tokens, _ = model.model.encode(model.model.embed(batch))
        mask = torch.ones_like(ids, dtype=torch.bool)
        logits = model.model.head.decoder(ids, mask, Memory.from_tokens(tokens))
        expected = peer(features(tmp_path, sounds), decoder_input_ids=ids).logits
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


OPTIONS = {
    "German": ({"language": "de"}, {"language": "de", "task": "transcribe"}),
    "translation": (
        {"language": "en", "marks": {"task": "translate"}},
        {"language": "en", "task": "translate"},
    ),
    "any language": ({}, {"task": "transcribe"}),  # both choose the language
}


@pytest.mark.parametrize(
    ("name", "beams", "end"),
    exhaustive_except(
        itertools.product(OPTIONS, [1, 4], [True, False]),
        ("German", 4, True),
        ("translation", 1, False),
        ("any language", 1, True),
    ),
)
def test_texts_are_those_of_transformers(name, beams, end, tmp_path):
    head, options = OPTIONS[name]
    peer = save_whisper(tmp_path, end=end)
    sounds = noises(*SOUNDS)
    expected = written(peer, tmp_path, sounds, num_beams=beams, **options)
    model = loaded(tmp_path, beams=beams, **head)
    assert texts_of(model, sounds) == expected
    assert len(set(expected)) == len(expected)


GENERATION = {
    "language": {"language": "de"},
    "task": {"task": "translate", "language": "<|en|>"},
    "ids": {"forced_decoder_ids": [[1, IDS["<|haw|>"]], [2, IDS["<|translate|>"]]]},
    "no ids": {"forced_decoder_ids": [[1, None], [2, IDS["<|transcribe|>"]]]},
}


@pytest.mark.parametrize("name", GENERATION)
def test_the_language_and_the_task_of_generation_config_are_used(name, tmp_path, capsys):
    peer = save_whisper(tmp_path)
    sounds = noises(*SOUNDS)
    usual = written(peer, tmp_path, sounds, task="transcribe")
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **GENERATION[name]}))
    peer.generation_config = transformers.GenerationConfig.from_pretrained(tmp_path)
    expected = written(peer, tmp_path, sounds)
    assert (expected == usual) == (name == "no ids")
    assert texts_of(loaded(tmp_path), sounds) == expected
    soundfile.write(tmp_path / "a.wav", sounds[0], RATE, "FLOAT")
    command = ["generate", f"weights={tmp_path}", f"input={tmp_path / 'a.wav'}", "dtype=float32"]
    assert main(command) == 0
    assert capsys.readouterr().out.strip() == expected[0]


@pytest.mark.parametrize(
    "option", [{"do_sample": True}, {"num_beam_groups": 2}, {"bad_words_ids": [[1, 2]]}]
)
def test_an_option_of_generation_config_without_effect_is_refused(option, tmp_path):
    save_whisper(tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **option}))
    with pytest.raises(UserError, match=f"dxn does not support {next(iter(option))}"):
        loaded(tmp_path)


@pytest.mark.parametrize("beams", exhaustive_except([1, 3], 1))
def test_the_tokens_before_a_text_count_in_its_rules(beams, tmp_path):
    peer = save_whisper(tmp_path)
    sounds = noises(*SOUNDS)
    rules = {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2, "min_length": 30}
    options = {"num_beams": beams, "language": "de", "task": "transcribe"}
    expected = written(peer, tmp_path, sounds, **options, **rules)
    assert expected != written(peer, tmp_path, sounds, **options)
    for name, value in rules.items():
        setattr(peer.generation_config, name, value)
    peer.generation_config.save_pretrained(tmp_path)
    assert texts_of(loaded(tmp_path, beams=beams, language="de"), sounds) == expected


def parts_of(sound):
    step = SECONDS * RATE
    return [sound[start : start + step] for start in range(0, len(sound), step)]


LONG = (5.1, 0.4, 2.05, 4.0, 6.2)


@pytest.mark.parametrize("beams", exhaustive_except([1, 3], 1))
def test_a_long_sound_is_written_in_consecutive_windows(beams, tmp_path):
    peer = save_whisper(tmp_path)
    sounds = noises(*LONG)
    model = loaded(tmp_path, beams=beams, language="de")
    expected = []
    for sound in sounds:
        parts = [part for part in parts_of(sound) if len(part) > 0.1 * RATE]
        options = {"num_beams": beams, "language": "de", "task": "transcribe"}
        texts = written(peer, tmp_path, parts, **options)
        expected.append(" ".join(filter(None, texts)))
    assert texts_of(model, sounds) == expected
    assert [texts_of(model, [sound])[0] for sound in sounds] == expected


def test_sampled_and_streamed_texts_of_windows_are_those_of_their_sound(tmp_path):
    save_whisper(tmp_path)
    sounds = noises(*LONG)
    model = loaded(tmp_path, beams=1, language="de")
    inputs = [{"audio": (sound, RATE)} for sound in sounds]
    assert model.write(inputs=inputs, max_new=NEW) == texts_of(model, sounds)
    options = {"max_new": NEW, "temperature": 1.5, "seed": 3}
    sampled = model.write(inputs=inputs, **options)
    assert sampled[:1] == model.write(inputs=inputs[:1], **options)
    assert sampled != texts_of(model, sounds)
    samples = model.samples(inputs)
    batch = samples.collate([samples[0, i] for i in range(len(samples))])
    streamed = {}

    def keep(new):
        for i, ids in new.items():
            streamed[i] = [*streamed.get(i, []), *ids]

    with torch.inference_mode():
        tokens, _ = model.model.encode(model.model.embed(batch))
        texts = model.task.write(model.model.head, tokens, on_tokens=keep)
    assert [model.task.tokenizer.decode(streamed.get(i, [])) for i in range(len(sounds))] == texts


def test_the_vector_of_a_long_sound_is_the_mean_of_its_windows(tmp_path):
    save_whisper(tmp_path)
    model = loaded(tmp_path)
    sounds = noises(*LONG)
    vectors = model.embed([{"audio": (sound, RATE)} for sound in sounds])
    for sound, vector in zip(sounds, vectors, strict=True):
        parts = [part for part in parts_of(sound) if len(part) > 0.1 * RATE]
        each = model.embed([{"audio": (part, RATE)} for part in parts])
        torch.testing.assert_close(vector, each.mean(0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("pad", [True, False])
def test_an_embedding_can_be_that_of_the_seconds_that_a_sound_has(pad, tmp_path):
    save_whisper(tmp_path / "public")
    sounds = noises(0.5 * SECONDS, 0.8 * SECONDS)
    for i, sound in enumerate(sounds):
        soundfile.write(tmp_path / f"{i}.wav", sound, RATE, subtype="FLOAT")
    (tmp_path / "table.csv").write_text("audio\n0.wav\n1.wav\n")
    command = ["embed", f"weights={tmp_path / 'public'}", f"input={tmp_path / 'table.csv'}"]
    pads = [] if pad else ["weights.pad=false"]
    assert main([*command, *pads, f"output={tmp_path / 'v.npy'}", "dtype=float32"]) == 0
    model = dxn.from_public(str(tmp_path / "public"), dtype="float32", pad=pad)
    vectors = np.load(tmp_path / "v.npy")
    for sound, vector in zip(sounds, vectors, strict=True):
        tokens = model.tokens(audio=(sound, RATE))
        assert tokens.x.shape[1] == 50 * (SECONDS if pad else len(sound) / RATE)
        alone = model.embed(audio=(sound, RATE))
        torch.testing.assert_close(alone.flatten(), torch.from_numpy(vector), atol=1e-5, rtol=0)


def test_a_folder_of_sounds_is_transcribed_by_the_command_line(tmp_path, capsys):
    save_whisper(tmp_path / "public")
    (tmp_path / "sounds").mkdir()
    sounds = noises(*LONG)
    save_table(tmp_path / "sounds", sounds)
    (tmp_path / "sounds" / "table.csv").unlink()
    command = ["predict", f"weights={tmp_path / 'public'}", str(tmp_path / "sounds")]
    assert main([*command, "dtype=float32", "head.language=de", "device=cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()[: len(sounds)]
    model = loaded(tmp_path / "public", language="de")
    read = [soundfile.read(tmp_path / "sounds" / f"{i}.wav") for i in range(len(sounds))]
    expected = texts_of(model, [sound.astype("float32") for sound, _ in read])
    assert [line.partition(": ")[2] for line in lines] == [" ".join(t.split()) for t in expected]
    assert main([*command, "head.language=fr"]) == 2
    assert "use one of de, en, haw" in capsys.readouterr().err


# Training

FAST = ["trainer.precision=float32", "trainer.device=cpu", "trainer.epochs=1", "batch_size=4"]


def save_table(folder, sounds):
    texts = [" ".join(f"w{(7 * i + k) % 80}" for k in range(3 + 2 * i)) for i in range(len(sounds))]
    for i, sound in enumerate(sounds):
        soundfile.write(folder / f"{i}.wav", sound, RATE)
    rows = [f"{i}.wav,{text}" for i, text in enumerate(texts)]
    (folder / "table.csv").write_text("\n".join(["audio,text", *rows]))
    return texts


def test_a_run_starts_from_all_weights_and_transcribes_as_the_public_model(tmp_path):
    save_whisper(tmp_path / "public")
    sounds = noises(*LONG, *SOUNDS)
    save_table(tmp_path, sounds)
    train(
        tmp_path / "run",
        *FAST,
        *("optimizer.lr=1e-30", "optimizer.weight_decay=0", "head=generate", "head.language=de"),
        *(f"data.path={tmp_path / 'table.csv'}", "target=text", f"weights={tmp_path / 'public'}"),
    )
    run = dxn.load(tmp_path / "run", dtype="float32")
    public = loaded(tmp_path / "public", language="de")
    state = run.model.state_dict()
    for name, tensor in public.model.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=0, atol=1e-20)
    assert texts_of(run, sounds) == texts_of(public, sounds)


def test_a_classifier_reads_a_short_sound_without_the_silence_after_it(tmp_path):
    save_whisper(tmp_path / "public")
    sounds = noises(*LONG, *SOUNDS)
    save_table(tmp_path, sounds)
    rows = [f"{i}.wav,{'ab'[i % 2]}" for i in range(len(sounds))]
    (tmp_path / "table.csv").write_text("\n".join(["audio,label", *rows]))
    path = f"data.path={tmp_path / 'table.csv'}"
    train(
        tmp_path / "run",
        *(*FAST, path, "target=label", "head=classify", f"weights={tmp_path / 'public'}"),
    )
    run = dxn.load(tmp_path / "run", dtype="float32")
    inputs = [{"audio": (sound, RATE)} for sound in sounds]
    samples = run.samples(inputs)
    lengths = [int(samples[0, i]["audio"]["lengths"]) for i in range(len(sounds))]
    hop = RATE // 100
    whole = [parts_of(sound) for sound in sounds]
    parts = [[part for part in each if len(part) > 0.1 * RATE or len(each) == 1] for each in whole]
    assert lengths == [sum(-(-len(part) // hop) for part in each) for each in parts]
    # Clips of one window, and clips of several, alone and beside longer ones.
    vectors = run.embed(inputs)
    for i, one in enumerate(inputs):
        torch.testing.assert_close(run.embed([one])[0], vectors[i], atol=1e-5, rtol=0)
    padded = loaded(tmp_path / "public").samples(inputs)
    for i, length in enumerate(lengths):
        ours, theirs = samples[0, i]["audio"]["features"], padded[0, i]["audio"]["features"]
        torch.testing.assert_close(ours, theirs[:length], atol=1e-6, rtol=0)


def test_the_losses_of_a_training_are_those_of_transformers(tmp_path):
    peer = save_whisper(tmp_path).train()
    sounds = noises(*SOUNDS)
    texts = save_table(tmp_path, sounds)
    model = loaded(tmp_path, language="de")
    network, task = model.model.train(), model.task
    rows = [{"audio": (sound, RATE)} for sound in sounds]
    samples = model.samples(rows)
    batch = samples.collate([samples[0, i] for i in range(len(samples))])
    batch["target"] = task.target.collate([task.target.encode(text, {}) for text in texts])
    ids = batch["target"]["ids"]
    inputs = {
        "input_features": features(tmp_path, sounds),
        "decoder_input_ids": ids[:, :-1].clamp(min=0),
        "labels": ids[:, 1:].contiguous(),
    }
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-3) for each in (network, peer)]
    losses = []
    for _ in range(10):
        total, weight = task.loss(network(batch), batch)
        pair = [total / weight, peer(**inputs).loss]
        for loss, optimizer in zip(pair, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append([loss.item() for loss in pair])
    ours, theirs = zip(*losses, strict=True)
    assert ours == pytest.approx(theirs, abs=1e-3)
    assert ours[-1] < 0.8 * ours[0]


# What is refused


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (
            {"language": "fr"},
            r"^head\.language: the tokenizer has no token '<\|fr\|>', got 'fr': use one of de, en, "
            "haw$",
        ),
        (
            {"marks": {"task": "sing"}},
            r"^head\.marks\.task: the tokenizer has no token '<\|sing\|>'",
        ),
        ({"langage": "de"}, r"^head\.langage: .* did you mean language\?$"),
    ],
)
def test_an_unknown_option_of_the_head_is_refused(head, message, tmp_path):
    save_whisper(tmp_path)
    with pytest.raises(UserError, match=message):
        loaded(tmp_path, **head)


def test_a_model_of_english_has_no_language(tmp_path):
    peer = save_whisper(tmp_path, english=True, vocab_size=51864)
    sounds = noises(0.4, 1.9)
    assert texts_of(loaded(tmp_path), sounds) == written(peer, tmp_path, sounds)
    with pytest.raises(UserError, match=r"language: no token before a text depends on it, got de"):
        loaded(tmp_path, language="de")


def test_targets_need_a_language(tmp_path):
    save_whisper(tmp_path)
    model = loaded(tmp_path)
    with pytest.raises(UserError, match=r"^head\.language: the language of the texts"):
        model.task.target.encode("w5", {})


def test_rows_without_a_token_are_left_out(tmp_path):
    """The tokenizer.json of old checkpoints has no tokens of times."""
    peer = save_whisper(tmp_path, vocab_size=WORDS + len(IDS) + 7)
    peer.generation_config.suppress_tokens += range(WORDS + len(IDS), WORDS + len(IDS) + 7)
    peer.generation_config.save_pretrained(tmp_path)
    sounds = noises(0.4, 1.9)
    options = {"language": "de", "task": "transcribe"}
    model = loaded(tmp_path, language="de")
    assert len(model.model.head.decoder.embedding.weight) == WORDS + len(IDS)
    assert texts_of(model, sounds) == written(peer, tmp_path, sounds, **options)


def test_a_model_without_its_tokenizer_is_an_encoder(tmp_path):
    save_whisper(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    model = loaded(tmp_path)
    assert model.task.name == "embed"
    assert model.embed(audio=(noises(0.5)[0], RATE)).shape == (44,)


def test_a_classifier_of_transformers_classifies(tmp_path):
    peer = save_whisper(tmp_path)
    config = transformers.WhisperConfig(**{**peer.config.to_dict(), "num_labels": 3})
    classifier = transformers.WhisperForAudioClassification(config).eval()
    classifier.save_pretrained(tmp_path)
    sounds = noises(1.3, 0.4, 2.0)
    with torch.inference_mode():
        expected = classifier(features(tmp_path, sounds)).logits.softmax(-1)
    model = loaded(tmp_path)
    answers = model.predict([{"audio": (sound, RATE)} for sound in sounds])
    found = torch.tensor([list(answer["probabilities"].values()) for answer in answers])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert model.task.name == "classify"


def test_a_changed_model_is_loaded_by_transformers(tmp_path):
    before = save_whisper(tmp_path)
    model, folder = changed_and_saved(tmp_path)
    peer = load_complete(type(before), folder)
    sounds = noises(*SOUNDS)
    texts = texts_of(model, sounds)
    assert texts_of(loaded(folder), sounds) == texts
    ids = torch.randint(0, 90, (len(sounds), 13))
    samples = model.samples([{"audio": (sound, RATE)} for sound in sounds])
    batch = samples.collate([samples[0, i] for i in range(len(samples))])
    with torch.inference_mode():
        tokens, _ = model.model.encode(model.model.embed(batch))
        mask = torch.ones_like(ids, dtype=torch.bool)
        logits = model.model.head.decoder(ids, mask, Memory.from_tokens(tokens))
        inputs = features(folder, sounds)
        torch.testing.assert_close(
            peer(inputs, decoder_input_ids=ids).logits, logits, rtol=0, atol=1e-4
        )
        assert (before(inputs, decoder_input_ids=ids).logits - logits).abs().max() > 0.1
