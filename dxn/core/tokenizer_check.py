"""Checks a tokenizer.json that may come from an untrusted source, before this process loads it.

A tokenizer contains regular expressions and replacement rules. A hostile one can take hours or
gigabytes for a short text, and an error in the library aborts the process. Three checks prevent it:

- The rules must not multiply the length of a text, and pieces have a maximum length.
- Regular expressions must not have repetitions inside of repetitions, which take exponential time.
- Another process, with limits of time and memory, loads the tokenizer and tries difficult texts.
"""

from __future__ import annotations

import base64
import math
import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dxn.core.errors import UserError
from dxn.core.files import sha256
from dxn.core.untrusted import check_file, load_json, shortened

TRIAL = Path(__file__).with_name("tokenizer_trial.py")
MAX_BYTES = 64_000_000  # the tokenizer of Gemma 3, one of the largest, has 33 MB
SECONDS = 2  # CPU time of the trial; a usual tokenizer takes 0.1 s
SECONDS_PER_MB = 0.2  # more time to parse a large file
MEMORY = 2_000_000_000  # bytes of address space of the trial
WAIT = 5  # times the CPU time, because other processes can occupy the machine
# Several rules may lengthen a text: NFKC maps one letter to up to 18.
MAX_GROWTH = 64
MAX_CONTENT = 100  # characters that a rule inserts
MAX_REPLACEMENT_BYTES = 256  # of one letter in the table of SentencePiece, where NFKC needs 33
MAX_WORD = 1_000  # letters of a word of WordPiece, whose time grows with the square; BERT has 100
MAX_PIECE = 2_000  # characters of a piece of the vocabulary
MAX_RULES = 200  # normalizers, splitting rules and decoders
SECTIONS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
MAX_REPETITIONS = 1_000  # the n of x{n} in a regular expression
# Unlimited repetitions in a row, such as \s*[\r\n]+ with two. The time grows with this power of the
# length of the text.
MAX_IN_A_ROW = 3
# Ways to match the same text, apart from unlimited repetitions. (a?){n} has 2 to the power of n.
MAX_VARIANTS = 10_000
# Parts of a regular expression: a repetition, and a set of characters with a name or number.
REPEAT = re.compile(r"[*+?]|\{(\d*)(,?)(\d*)\}")
NAMED = re.compile(r"\\[pPx]\{[^}]*\}")
REFUSED = re.compile(r"\\[1-9kg]|\(\?[(~&R@{]|\(\*")

# Digests of the files that this process has written or checked, so that they are checked once.
_known: set[str] = set()


def check_tokenizer(path: Path) -> None:
    """Check a tokenizer.json, unless this process has already checked the same content.

    Raises:
        UserError: If it is not valid, or takes too much time or memory.
    """
    check_file(path, allow_links=True)
    digest = sha256(path)
    if digest in _known:
        return
    content = load_json(path, max_bytes=MAX_BYTES, allow_links=True)
    if not isinstance(content, dict):
        raise UserError(f"{path}: must be a JSON object, got {type(content).__name__}")
    for section in SECTIONS:
        _check_rules(content.get(section), f"{path}: {section}")
    _check_model(content.get("model"), path)
    _try(path)
    _known.add(digest)


def trust_tokenizer(path: Path) -> None:
    """Skip the check of a file that this process has just written."""
    _known.add(sha256(path))


def _try(path: Path) -> None:
    """Load and use the tokenizer in another process with limits of time and memory.

    Raises:
        UserError: If it fails or exceeds the limits.
    """
    seconds = SECONDS + int(path.stat().st_size / 1e6 * SECONDS_PER_MB)
    # -I: neither the current folder nor the environment can replace the imported modules.
    command = [sys.executable, "-I", str(TRIAL), str(path), str(seconds), str(MEMORY)]
    advice = "use another tokenizer"
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds * WAIT, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"{path}: the tokenizer takes more than {seconds} s for a text; {advice}"
        ) from error
    if done.returncode == 0:
        return
    # A negative code is the signal that ended the process.
    if done.returncode < 0:
        raise UserError(
            f"{path}: the tokenizer takes more than {seconds} s or {MEMORY / 1e9:.0f} GB for a "
            f"text; {advice}"
        )
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    reason = lines[-1][:200] if lines else f"exit code {done.returncode}"
    raise UserError(
        f"{path}: not a tokenizer.json of the tokenizers library ({reason}); check the path"
    )


def _check_rules(section: Any, place: str) -> None:
    """Check the rules of a section, such as the normalizer.

    Raises:
        UserError: If a rule could take exponential time, or multiplies the length of a text.
    """
    growth = 1.0
    rules = list(_rules(section))
    if len(rules) > MAX_RULES:
        raise UserError(f"{place}: must have at most {MAX_RULES} rules, got {len(rules):,}")
    for rule in rules:
        pattern = rule.get("pattern")
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        if isinstance(regex, str) and (fault := regex_fault(regex)):
            raise UserError(
                f"{place}: the regular expression {shortened(regex)} {fault}; use another tokenizer"
            )
        for name in ("content", "prepend", "replacement", "prefix", "suffix"):
            inserted = rule.get(name)
            if not isinstance(inserted, str):
                continue
            if len(inserted) > MAX_CONTENT:
                raise UserError(
                    f"{place}: a rule inserts {len(inserted):,} characters, but at most "
                    f"{MAX_CONTENT} are allowed; use another tokenizer"
                )
            if name == "content":
                growth *= _growth(pattern, inserted)
        table = rule.get("precompiled_charsmap")
        if isinstance(table, str):
            _check_table(table, place)
    if growth > MAX_GROWTH:
        raise UserError(
            f"{place}: the rules can make a text {growth:,.0f} times longer, but at most "
            f"{MAX_GROWTH} times is allowed; use another tokenizer"
        )


def _rules(section: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all mappings of a section, at any depth."""
    if isinstance(section, dict):
        yield section
        for value in section.values():
            yield from _rules(value)
    elif isinstance(section, list):
        for value in section:
            yield from _rules(value)


def _growth(pattern: Any, inserted: str) -> float:
    """Return by which factor a replacement can lengthen a text."""
    text = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(text, str) and text:
        return max(1.0, len(inserted) / len(text))
    # A regular expression, and an empty text, also match between two letters.
    return 1.0 + len(inserted)


def _check_table(table: str, place: str) -> None:
    """Check the table of replaced letters of SentencePiece.

    Raises:
        UserError: If it is damaged, or replaces a letter by a long text.
    """
    # The format: size of an index in bytes, the index, and the replacements, each ended by 0.
    try:
        content = base64.b64decode(table, validate=True)
        (size,) = struct.unpack_from("<I", content)
    except (ValueError, struct.error) as error:
        raise UserError(f"{place}: precompiled_charsmap is damaged: {error}") from error
    longest = max(len(part) for part in content[4 + size :].split(b"\0"))
    if longest > MAX_REPLACEMENT_BYTES:
        raise UserError(
            f"{place}: precompiled_charsmap replaces a letter by {longest:,} bytes, but at most "
            f"{MAX_REPLACEMENT_BYTES} are allowed; use another tokenizer"
        )


def _check_model(model: Any, path: Path) -> None:
    """Check the sizes of a tokenizer's model.

    Raises:
        UserError: If its time could grow with the square of the length of a text.
    """
    if not isinstance(model, dict):
        return  # the library refuses it
    word = model.get("max_input_chars_per_word")
    if isinstance(word, int) and word > MAX_WORD:
        raise UserError(
            f"{path}: model.max_input_chars_per_word must be at most {MAX_WORD:,}, got {word}"
        )
    vocab = model.get("vocab") or ()
    # A list of pairs (piece, score) for Unigram, otherwise ids by piece.
    pieces = (pair[0] if isinstance(pair, list) and pair else pair for pair in vocab)
    longest = max((len(piece) for piece in pieces if isinstance(piece, str)), default=0)
    if longest > MAX_PIECE:
        raise UserError(
            f"{path}: a piece of the vocabulary must have at most {MAX_PIECE:,} characters, got "
            f"{longest:,}"
        )


@dataclass
class _Group:
    """An open group of a regular expression.

    Args:
        is_complex: Whether it contains an alternative or a repetition with several lengths.
        unlimited: Number of unlimited repetitions in the current alternative.
        variants: In how many ways the current alternative can match, without unlimited repetitions.
        before: The sum of these numbers over the alternatives before it.
    """

    is_complex: bool = False
    unlimited: int = 0
    variants: int = 1
    before: int = 0


def regex_fault(pattern: str) -> str | None:
    """Return why a regular expression could take exponential time; None if it cannot.

    The check is stricter than necessary, but accepts the patterns of all tokenizers in use.
    """
    if REFUSED.search(pattern):
        return "has a reference to a group, a condition or a call, which are not allowed"
    groups = [_Group()]
    is_complex = False  # the part in front of the current position
    i = 0
    while i < len(pattern):
        character = pattern[i]
        repeat = REPEAT.match(pattern, i)
        if repeat:
            fewest, most = _limits(repeat)
            if most > 1 and is_complex:
                return "has a repetition or alternatives inside of a repetition"
            if MAX_REPETITIONS < most < math.inf:
                return f"has more than {MAX_REPETITIONS} repetitions"
            group = groups[-1]
            if most == math.inf:
                group.unlimited += 1
            else:
                group.variants *= int(most - fewest) + 1
            is_complex = is_complex or fewest != most
            group.is_complex |= is_complex
            i = repeat.end()
            # A lazy or possessive repetition, such as a+? and a++, which is not a second one.
            if repeat[0] in ("*", "+", "?") and pattern[i : i + 1] in ("?", "+"):
                i += 1
        elif character == ")" and len(groups) > 1:
            inner = groups.pop()
            is_complex = inner.is_complex
            groups[-1].is_complex |= is_complex
            groups[-1].unlimited += inner.unlimited
            groups[-1].variants *= inner.before + inner.variants
            i += 1
        elif character == "|":
            group = groups[-1]
            groups[-1] = _Group(is_complex=True, before=group.before + group.variants)
            i += 1
        else:
            is_complex = False
            if character == "(":
                groups.append(_Group())
            i = _next(pattern, i)
        if max(group.unlimited for group in groups) > MAX_IN_A_ROW:
            return f"has more than {MAX_IN_A_ROW} unlimited repetitions in a row"
        if max(group.before + group.variants for group in groups) > MAX_VARIANTS:
            return f"has more than {MAX_VARIANTS:,} variants"
    return None


def _next(pattern: str, i: int) -> int:
    """Return the index after the part of a regular expression at index i."""
    match pattern[i]:
        case "\\":
            named = NAMED.match(pattern, i)  # \p{Lu} and \x{41} are a single part
            return named.end() if named else i + 2
        case "[":
            return _end_of_set(pattern, i)
        case "(" if pattern[i + 1 : i + 2] == "?":
            return i + 2  # the ? is not a repetition here
    return i + 1


def _limits(repeat: re.Match[str]) -> tuple[int, float]:
    """Return the smallest and the largest number of repetitions."""
    match repeat[0]:
        case "*":
            return 0, math.inf
        case "+":
            return 1, math.inf
        case "?":
            return 0, 1
    fewest, comma, most = repeat.groups()
    if not comma:
        return int(fewest or 0), int(fewest or 0)
    return int(fewest or 0), int(most) if most else math.inf


def _end_of_set(pattern: str, start: int) -> int:
    """Return the index after a set of characters such as [^a-z], which may contain other sets."""
    depth = 0
    i = start
    while i < len(pattern):
        if pattern[i] == "\\":
            i += 1
        elif pattern[i] == "[":
            depth += 1
        elif pattern[i] == "]" and i > start + 1:
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    return i
