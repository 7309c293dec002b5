"""Measure how often the cross-attention of a translation model aligns translated words.

    python benchmarks/studies/alignment.py DIR RUN

DIR contains test.csv of Multi30k (en, de). RUN is a run of `dxn train experiment=translate`.

The benchmark translates sentences and looks up each generated German word in a small lexicon. It
skips words of several tokens, and words whose English translation is not exactly one token of the
source. For the other words, it counts how often the English token has the largest attention weight.
It prints this share for the mean over all blocks and heads of the decoder, and for each block.
"""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import dxn
from dxn.runs.predictor.attention import answer_of
from dxn.runs.predictor.predictor import Predictor

SENTENCES = 300  # number of translated test sentences
COLORS = {
    "red": "rot",
    "blue": "blau",
    "green": "grün",
    "white": "weiß",
    "black": "schwarz",
    "yellow": "gelb",
}
ENDINGS = ("", "e", "en", "er", "es", "em")  # of German adjectives
WORDS = """
mann:man männer:men frau:woman frauen:women junge:boy jungen:boys mädchen:girl kind:child
kinder:children baby:baby hund:dog hunde:dogs pferd:horse wasser:water schnee:snow gras:grass
strand:beach berg:mountain straße:street ball:ball fahrrad:bicycle auto:car gitarre:guitar hut:hat
tisch:table springt:jumps läuft:runs spielt:plays sitzt:sits steht:stands hält:holds
zwei:two drei:three vier:four und:and mit:with
"""
LEXICON = dict(re.findall(r"(\w+):(\w+)", WORDS))
for english, german in COLORS.items():
    LEXICON |= {german + ending: english for ending in ENDINGS}


@dataclass(frozen=True)
class Pair:
    """A generated German word and its English translation in the source.

    Args:
        true: Column of the English word.
        largest: Column with the largest attention weight. The first value is for the mean over all
            blocks, the others are for each block.
    """

    true: int
    largest: list[int]


def pairs_of(predictor: Predictor, text: str) -> list[Pair]:
    """Translate one sentence, and return its pairs of words that are in the lexicon."""
    samples = predictor.samples([{"text": text}])
    with torch.inference_mode():
        batch = predictor.batch(samples, 0)
        encoded, _ = predictor.model.encode(predictor.model.embed(batch))
        answer = answer_of(predictor, encoded)
    span = next(span for span in encoded.spans if span.name == "text")
    tokenizer = predictor.tokenizers["text"].vocabulary
    tokens = [tokenizer.decode([i]).strip().lower() for i in batch["text"]["ids"][0].tolist()]
    # (1 + L, T, N): the mean over all blocks and heads, then the mean over the heads of each of L
    # blocks. Only the columns of the text remain.
    weights = torch.cat([answer.mean[None], answer.weights.mean(1)])[..., span.start : span.stop]
    largest = weights.argmax(-1)
    pairs: list[Pair] = []
    for i, word in enumerate(answer.words):
        english = LEXICON.get(word.strip().lower())
        # If the English word occurs twice, it is unclear which one is the translation.
        if english is not None and tokens.count(english) == 1:
            pairs.append(Pair(tokens.index(english), largest[:, i].tolist()))
    return pairs


def main() -> None:
    """Print one line per block."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with (Path(sys.argv[1]) / "test.csv").open(newline="", encoding="utf-8") as file:
        texts = [row["en"] for row in csv.DictReader(file)][:SENTENCES]
    predictor = dxn.load(sys.argv[2])
    pairs: list[Pair] = []
    for text in texts:
        pairs += pairs_of(predictor, text)
    if not pairs:
        raise SystemExit(
            "the model generated no word of the lexicon; RUN must translate from English to German"
        )
    for k in range(len(pairs[0].largest)):
        hits = sum(pair.largest[k] == pair.true for pair in pairs)
        # Index 0 is the mean over all blocks.
        name = f"block {k}" if k else "all blocks"
        share = hits / len(pairs)
        print(
            f"{name}: the largest weight of {share:.1%} of {len(pairs)} words is on the translation"
        )


if __name__ == "__main__":
    main()
