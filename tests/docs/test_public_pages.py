"""Every command of the pages about speech and translation runs, with tiny public checkpoints."""

from __future__ import annotations

import json
import re
import shlex

import numpy as np
import pytest
import soundfile
import torch
import transformers
from helpers.pages import DOCS, blocks, commands
from helpers.reference import lively_writer
from helpers.whisper import RATE, save_whisper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from dxn.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")

WORDS = ["yes", "no", "a", "small", "house", "tea"]
GERMAN = ["ein", "kleines", "Haus"]
CHARACTERS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefghijklmnopqrstuvwxyz"]
# Short trainings. The values are those of the pages otherwise.
FAST = ["trainer.epochs=1", "trainer.device=cpu", "batch_size=8", "baseline=none"]


def save_wav2vec2(folder, *, transcribes):
    config = transformers.Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=37,
        conv_dim=[11, 13, 7, 7, 7, 7, 13],
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        vocab_size=len(CHARACTERS),
    )
    torch.manual_seed(0)
    cls = transformers.Wav2Vec2ForCTC if transcribes else transformers.Wav2Vec2Model
    cls(config).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder)
    if transcribes:
        ids = {token: i for i, token in enumerate(CHARACTERS)}
        (folder / "vocab.json").write_text(json.dumps(ids))


def save_marian(folder):
    special = ["<pad>", "</s>", "<unk>"]
    words = [*special, *WORDS, "A", "house.", *GERMAN]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    config = transformers.MarianConfig(
        vocab_size=len(words),
        d_model=24,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=31,
        decoder_ffn_dim=31,
        max_position_embeddings=40,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    torch.manual_seed(0)
    lively_writer(transformers.MarianMTModel(config)).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the tables, the recordings and the checkpoints of the pages."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recordings").mkdir()
    rand = np.random.default_rng(0)
    clips, words, pairs = ["audio,text"], ["audio,word"], ["text,translation"]
    for i in range(20):
        sound = rand.normal(0, 0.1, 9000 + 100 * i)
        soundfile.write(tmp_path / "recordings" / f"{i}.wav", sound, RATE)
        clips.append(f"recordings/{i}.wav,{WORDS[i % 6]} {WORDS[i % 5]}")
        words.append(f"recordings/{i}.wav,{WORDS[i % 2]}")
        pairs.append(f"{WORDS[i % 6]} {WORDS[i % 5]} house,{GERMAN[i % 3]} Haus")
    soundfile.write(tmp_path / "talk.wav", rand.normal(0, 0.1, 5 * RATE), RATE)
    for name, lines in (("clips", clips), ("words", words), ("pairs", pairs)):
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    return tmp_path


CHECKPOINTS = {
    "openai/whisper-tiny": save_whisper,
    "facebook/wav2vec2-base-960h": lambda folder: save_wav2vec2(folder, transcribes=True),
    "facebook/wav2vec2-base": lambda folder: save_wav2vec2(folder, transcribes=False),
    "Helsinki-NLP/opus-mt-en-de": save_marian,
}


@pytest.mark.parametrize("page", ["speech.md", "transcribe.md", "translate.md"])
def test_every_command_of_the_page_runs(page, folder, capsys):
    lines = [command for block in blocks(DOCS / page) for command in commands(block)]
    # Commands with data of the example package need no checkpoint.
    lines = [line for line in lines if "conf_dir=" not in line]
    for command in lines:
        words = shlex.split(command)[1:]
        for i, word in enumerate(words):
            name = word.removeprefix("weights=")
            if name in CHECKPOINTS:
                path = folder / "models" / name
                if not path.exists():
                    path.mkdir(parents=True)
                    CHECKPOINTS[name](path)
                words[i] = f"weights={path}"
        code = main([*words, *(FAST if words[0] == "train" else [])])
        output = capsys.readouterr()
        assert code == 0, (command, output.err)
        for path in re.findall(r"\boutput=(\S+)", command):
            assert (folder / path).exists()
