"""Finds regular expressions from an untrusted source that could take exponential time."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

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
