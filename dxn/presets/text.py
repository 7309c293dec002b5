"""Options of the text adapter that suit the data (preset=auto)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from dxn.presets.advice import Advice, Facts
from dxn.tokenize.text.scripts import count_words

MAX_ROWS = 50_000  # training rows up to which single words are regularized strongly
MIN_WORDS = 2  # fewer: names and single words, whose letters tell more than the word
MAX_WORD_CHARS = 12  # more: codes and addresses, which keep their subwords
LONG = 100  # words of a text from which its mean vector tells more than the maximum
WORDS = 16_000
MAX_LEN = 256  # words that are read, see TextAdapter
# A transformer needs this many epochs. If fewer fit into the time limit, neighboring words are
# pooled, so that a text has a half, a quarter or an eighth of the columns.
MIN_EPOCHS = 20
POOLS = (1, 2, 4, 8)
WORD_DROPOUT, CHARACTER_DROPOUT = 0.5, 0.2


def advise_text(cells: Sequence[Any], facts: Facts) -> list[Advice]:
    """Return options for classifying texts.

    Args:
        cells: Texts or lists of words.
        facts: What is known about the training.
    """
    texts = [cell if isinstance(cell, str) else " ".join(map(str, cell)) for cell in cells]
    counts = [count_words(text) for text in texts]
    words = statistics.median(counts)
    chars = sum(map(len, texts)) / max(sum(counts), 1)
    has_several_words = words >= MIN_WORDS
    is_alone = facts.num_files == 1
    if facts.rows > MAX_ROWS or words < 1 or chars > MAX_WORD_CHARS:
        return []
    if not (has_several_words or is_alone):
        return []
    unit = "word" if words == 1 else "words"
    about = f"{facts.rows:,} texts with a median of {words:g} {unit}"
    options = {
        "tokenizer.kind": "word" if has_several_words else "character",
        "tokenizer.lowercase": True,
        "vocab_size": WORDS,
        "conv_kernel": 3,
        "dropout": WORD_DROPOUT if has_several_words else CHARACTER_DROPOUT,
    }
    # The speed is measured, so only where it can matter.
    if words > LONG:
        options["embedding.pool"] = _pool(counts, facts)
    # Next to other inputs, a question without one of its words has no answer.
    if is_alone:
        options["augment.token_mask"] = 0.1
    advice = [Advice(f"{facts.prefix}.{name}", value, about) for name, value in options.items()]
    if is_alone:
        advice.append(Advice("trainer.mixup", 1.0, about))
        if words <= LONG:
            advice.append(Advice("fusion.pool", "max", "short texts"))
    return advice


def _pool(counts: Sequence[int], facts: Facts) -> int:
    """Return the number of words per column with which enough epochs fit into the time limit."""
    mean = statistics.mean(min(count, MAX_LEN) for count in counts)
    fitting = facts.epochs_within_limit(mean)
    enough = (pool for pool in POOLS if pool * fitting >= MIN_EPOCHS)
    return next(enough, POOLS[-1])
