"""Program that tries a tokenizer.json in a process of its own, see `dxn.core.tokenizer_check`.

Usage: tokenizer_trial.py FILE SECONDS BYTES. It exits with 0 if the tokenizer can be loaded and
converts difficult texts within the limits of CPU time and memory. It must not import dxn, which
would take most of its time.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

# A pattern whose time grows with the square of the length takes seconds for a text of this length,
# and any usual one takes milliseconds.
LENGTH = 20_000
# A letter, a capital, a digit, whitespace, punctuation, an accent, and other scripts.
CHARACTERS = "aA0 \n\t.,-_'\u00e9\u0301\u4e2d\u0627\U0001f600"
MAX_CHARACTERS = 60  # that are repeated
WORDS = "The quick brown fox, 12.5 km/h (naïve)?\n"


def limit(seconds: int, memory: int) -> None:
    """Limit the CPU time and the memory of this process."""
    try:
        import resource
    except ImportError:  # Windows; the parent process limits the time
        return
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def patterns(node: object) -> str:
    """Return all characters of the patterns of a tokenizer, which are difficult texts for it."""
    if isinstance(node, dict):
        pattern = node.get("pattern")
        own = "".join(str(value) for value in pattern.values()) if isinstance(pattern, dict) else ""
        return own + "".join(patterns(value) for value in node.values())
    return "".join(patterns(value) for value in node) if isinstance(node, list) else ""


def main() -> None:
    """Convert texts of one repeated character, and texts of words."""
    path, seconds, memory = sys.argv[1:]
    limit(int(seconds), int(memory))
    text = Path(path).read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    content = json.loads(text)
    steps = [content.get(key) for key in ("normalizer", "pre_tokenizer")]
    special = [c for c in dict.fromkeys(patterns(steps)) if c not in "\\()[]{}*+?|^$"]
    normalizer, pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    # A pattern that needs a certain letter fails at once for a text without it.
    tail = f"!{''.join(special[:MAX_CHARACTERS])}!"
    for character in [*CHARACTERS, *special[:MAX_CHARACTERS]]:
        repeated = character * LENGTH + tail
        if normalizer is not None:
            repeated = normalizer.normalize_str(repeated)
        if pre_tokenizer is not None:
            pre_tokenizer.pre_tokenize_str(repeated)
        # The model itself needs no long words: its time depends on its own limits.
        tokenizer.encode(character * 200)
    encoding = tokenizer.encode(WORDS * 50)
    tokenizer.decode(encoding.ids, skip_special_tokens=False)


if __name__ == "__main__":
    main()
