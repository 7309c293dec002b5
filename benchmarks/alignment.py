"""Whether a translator's attention points from a German word to its English one.

python benchmarks/alignment.py DIR RUN

DIR holds Multi30k's test.csv (en, de); RUN is what dxn train experiment=translate leaves. Counted are the written words
of one token that a small lexicon knows, where their English word stands in the sentence once, as one token: how often
that token is what they read most, in the mean of all of the decoder's blocks and heads, and in each block.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import torch

import dxn
from dxn.train.bundle import Predictor
from dxn.train.outcome import answer_of

SENTENCES = 300
COLOURS = {"red": "rot", "blue": "blau", "green": "grün", "white": "weiß", "black": "schwarz", "yellow": "gelb"}
ENDINGS = ("", "e", "en", "er", "es", "em")
WORDS = """
mann:man männer:men frau:woman frauen:women junge:boy jungen:boys mädchen:girl kind:child kinder:children baby:baby
hund:dog hunde:dogs pferd:horse wasser:water schnee:snow gras:grass strand:beach berg:mountain straße:street
ball:ball fahrrad:bicycle auto:car gitarre:guitar hut:hat tisch:table
springt:jumps läuft:runs spielt:plays sitzt:sits steht:stands hält:holds
zwei:two drei:three vier:four und:and mit:with
"""
LEXICON = {
    **{german + ending: english for english, german in COLOURS.items() for ending in ENDINGS},
    **dict(re.findall(r"(\w+):(\w+)", WORDS)),
}


def pointed(predictor: Predictor, text: str) -> list[tuple[int, list[int]]]:
    """For each word that counts: where its English word stands, and where it looked, in the mean and in each block."""
    samples = predictor.samples([{"text": text}])
    sample = samples[0, 0]
    with torch.inference_mode():
        encoded, _ = predictor.model.encode(predictor.model.embed(samples.collate([sample])))
    answer = answer_of(predictor, encoded)
    start, stop = next((span.start, span.stop) for span in encoded.spans if span.modality == "text")
    writing = predictor.target.writing
    assert writing is not None
    read = [writing.decode([int(i)]) for i in sample["text"]["ids"]]
    looks = torch.cat([answer.weights[None], answer.looks.mean(1)])[:, :, start:stop].argmax(-1)
    found = []
    for at, word in enumerate(answer.words):
        english = LEXICON.get(word)
        if english is not None and read.count(english) == 1:
            found.append((read.index(english), looks[:, at].tolist()))
    return found


def main() -> None:
    """Print the shares."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with (Path(sys.argv[1]) / "test.csv").open(newline="", encoding="utf-8") as file:
        texts = [row["en"] for row in csv.DictReader(file)][:SENTENCES]
    predictor = dxn.load(sys.argv[2])
    found = [one for text in texts for one in pointed(predictor, text)]
    for k, name in enumerate(["all blocks", *(f"block {k}" for k in range(1, len(found[0][1])))]):
        hits = sum(looked[k] == there for there, looked in found)
        print(f"{name}: {hits / len(found):.1%} of {len(found)} words read their English word most")


if __name__ == "__main__":
    main()
