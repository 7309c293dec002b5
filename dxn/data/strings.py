"""Data whose target is a text: strings of digits dialled, and of single words spoken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dxn.data.digits import HIGH, KEYS, LOW, RATE
from dxn.data.read import Table, read
from dxn.data.rows import Rows, Source
from dxn.data.tables import from_tables
from dxn.errors import UserError
from dxn.tokenize.media import BadMedia, audio_rate, read_audio

TONE = (0.05, 0.15)  # seconds a key is held
PAUSE = (0.03, 0.15)  # seconds before, between and after keys
FAINT = 0.03  # noise between spoken words, as a share of their level: 30 dB below it, like a room's

BOTH = "word and speaker"  # a column of both, so that what is drawn holds as much of each word by each speaker


@dataclass(frozen=True)
class Clip:
    """One word: its sound, float32 (T,), and its file's rate, what is said and by whom, and its line in the table."""

    sound: np.ndarray
    rate: int
    word: str
    speaker: str
    line: str


def dialled(
    *,
    num_train: int = 4000,
    num_validation: int = 300,
    num_test: int = 600,
    shortest: int = 3,
    longest: int = 12,
    spoil: float = 1.0,
    seed: int = 0,
) -> Source:
    """Strings of digits dialled key by key: audio (float32 (T,), 8000), target "3 0 7". Each occurs in one row only.

    Args:
        num_train: rows of the training split.
        num_validation: rows of the validation split.
        num_test: rows of the test split.
        shortest: digits of the shortest string.
        longest: digits of the longest string; every length between is as likely.
        spoil: strength of the noise; 0 for clean tones.
        seed: of everything random.

    Raises UserError for a split without a row, lengths that do not rise, a negative spoil, and more rows than there
    are strings.
    """
    counts = {"train": num_train, "validation": num_validation, "test": num_test}
    _check(counts, shortest, longest)
    if spoil < 0:
        raise UserError(f"data.spoil must be 0 (clean) or more, got {spoil}")
    rng = np.random.default_rng(seed)
    strings = iter(_different(rng, sum(counts.values()), shortest, longest))
    splits = {name: _dialled_rows(rng, islice(strings, count), spoil) for name, count in counts.items()}
    notes = ["made on the spot: no string of digits is in two splits"]
    return Source(splits, "text", {"audio": "dialled", "target": "digits"}, notes)


def dial_string(rng: np.random.Generator, digits: str, spoil: float = 1.0) -> np.ndarray:
    """float32 (T,) at 8,000 Hz: the tone pairs of these keys (ITU-T Q.23) with pauses, of random level, in noise."""
    pieces = [_pause(rng)]
    for digit in digits:
        pieces += [_tones(rng, digit), _pause(rng)]
    sound = np.concatenate(pieces)
    noise = spoil * 10 ** rng.uniform(-0.3, 0.5)  # relative to one of the two tones
    loud = rng.uniform(0.01, 0.05) * (sound + noise * rng.standard_normal(len(sound)))
    return loud.clip(-1, 1).astype(np.float32)


def spoken(
    path: str,
    *,
    audio: str = "path",
    target: str = "digit",
    speaker: str | None = "speaker",
    split: str | None = "split",
    holdout: Mapping[str, Any] | None = None,
    num_train: int = 4000,
    num_validation: int = 300,
    num_test: int = 600,
    shortest: int = 3,
    longest: int = 12,
    gap: Sequence[float] = (0.05, 0.3),
    seed: int = 0,
) -> Source:
    """Single spoken words joined to strings: audio (float32 (T,), rate), target "3 0 7". One speaker says a string.

    A clip is in one split only, and at most once in a string; the strings of words themselves may recur. Without
    validation rows in the table, a tenth of the training clips are drawn, as many of each word by each speaker.
    Clips are resampled to the rate of the first training clip.

    Args:
        path: a table, a row for each clip of one word.
        audio: column of sound paths, relative to the table.
        target: column of the word that a clip says.
        speaker: column of who says it; null where it does not matter who says which word of a string.
        split: column that says which split a clip is in; null for one called split, or else shares of 0.8, 0.1 and 0.1.
        holdout: column and value whose clips are the test split, all others the rest.
        num_train: strings of the training split.
        num_validation: strings of the validation split.
        num_test: strings of the test split.
        shortest: words of the shortest string.
        longest: words of the longest string; every length between is as likely.
        gap: seconds of faint noise before, between and after words, the least and the most.
        seed: of the drawn splits and everything else random.

    Raises UserError for wrong settings, a missing column, a clip that cannot be read (with its row), a split without
    clips, and a speaker with fewer clips in a split than the longest string has words.
    """
    counts = {"train": num_train, "validation": num_validation, "test": num_test}
    _check(counts, shortest, longest)
    if len(gap) != 2 or not 0 <= gap[0] <= gap[1]:
        raise UserError(f"data.gap must be two lengths in seconds, the shorter first, got {list(gap)}")
    table = read(Path(path))
    _check_columns(table, {"audio": audio, "target": target, "speaker": speaker})
    _check_columns(table, {"holdout": next(iter(holdout))} if holdout else {"split": split})
    said = _said(table, target, speaker)
    found = from_tables(
        {"all": Table({**table.columns, BOTH: list(said.values())}, table.files, table.lines)},
        {"audio": audio},
        target=BOTH,
        kind="class",
        split=split,
        holdout=holdout,
        fractions=(0.8, 0.1, 0.1),
        on_bad="error",
        seed=seed,
    )
    for name in counts:
        if not len(found.splits.get(name, ())):
            raise UserError(f"{path}: no clip is left for the {name} split")
    clips = {"train": _clips(found.splits["train"], said)}
    rate = clips["train"][0].rate
    clips |= {name: _clips(found.splits[name], said, rate) for name in ("validation", "test")}
    for name, those in clips.items():
        _check_enough(name, those, longest)
    rng = np.random.default_rng(seed)
    splits = {}
    for name, those in clips.items():
        voices = _by_speaker(those)
        drawn = [_drawn(rng, voices, shortest, longest) for _ in range(counts[name])]
        splits[name] = _spoken_rows(rng, drawn, gap, rate, Path(path).name)
    shares = ", ".join(f"{name} {len(those):,}" for name, those in clips.items())
    notes = [*found.notes, f"strings joined from single clips: {shares}"]
    if others := sum(clip.rate != rate for those in clips.values() for clip in those):
        notes.append(f"resampled to {rate:,} Hz: {others:,} clips")
    return Source(splits, "text", {"audio": f"{audio}, joined", "target": f"{target}, joined"}, notes)


def _check(counts: Mapping[str, int], shortest: int, longest: int) -> None:
    if min(counts.values()) < 1:
        raise UserError("data: every split needs a row, got {}, {} and {}".format(*counts.values()))
    if not 1 <= shortest <= longest:
        raise UserError(f"data.shortest and data.longest must be 1 or more and rise, got {shortest} and {longest}")


def _different(rng: np.random.Generator, count: int, shortest: int, longest: int) -> list[str]:
    """Strings of digits, no two the same."""
    possible = sum(10**length for length in range(shortest, longest + 1))
    if count > possible:
        lengths = f"{shortest} to {longest}"
        raise UserError(f"data.longest: {count:,} rows want different strings, of {lengths} digits are {possible:,}")
    found: dict[str, None] = {}
    while len(found) < count:
        length = rng.integers(shortest, longest, endpoint=True)
        found["".join(map(str, rng.integers(10, size=length)))] = None
    # Short strings run out first: shuffled, every split has as many of them.
    strings = list(found)
    return [strings[i] for i in rng.permutation(count)]


def _dialled_rows(rng: np.random.Generator, strings: Iterator[str], spoil: float) -> Rows:
    targets = [" ".join(string) for string in strings]
    sounds = [(dial_string(rng, target.replace(" ", ""), spoil), RATE) for target in targets]
    return Rows({"audio": sounds, "target": targets}, [f"dialled row {i + 1}" for i in range(len(targets))])


def _pause(rng: np.random.Generator) -> np.ndarray:
    return np.zeros(round(rng.uniform(*PAUSE) * RATE))


def _tones(rng: np.random.Generator, digit: str) -> np.ndarray:
    """float64 (T,): the sines of a key's row and column, each of amplitude 1."""
    row = next(i for i, keys in enumerate(KEYS) if digit in keys)
    time = np.arange(round(rng.uniform(*TONE) * RATE)) / RATE
    low, high = (
        np.sin(2 * np.pi * (hertz * time + rng.random())) for hertz in (LOW[row], HIGH[KEYS[row].index(digit)])
    )
    return low + high


def _check_columns(table: Table, columns: Mapping[str, str | None]) -> None:
    for key, column in columns.items():
        if column is not None and column not in table.columns:
            raise UserError(f"data.{key}: no column {column!r}; columns: {', '.join(table.columns)}")


def _said(table: Table, target: str, speaker: str | None) -> dict[str, tuple[str, str]]:
    """The word and its speaker by the origin of the row; no speaker has a name where no column says it."""
    words = table.columns[target]
    speakers = table.columns[speaker] if speaker is not None else [""] * len(table)
    for i, both in enumerate(zip(words, speakers, strict=True)):
        if None in both:
            raise UserError(f"{table.origin(i)}: no {'target' if both[0] is None else 'speaker'}")
    return {table.origin(i): (str(words[i]), str(speakers[i])) for i in range(len(table))}


def _clips(rows: Rows, said: Mapping[str, tuple[str, str]], rate: int | None = None) -> list[Clip]:
    """Every clip of a split, at this rate in hertz or else at that of the first."""
    found = []
    for source, origin in zip(rows.cells["audio"], rows.origin, strict=True):
        if source is None:
            raise UserError(f"{origin}: no audio")
        try:
            own = audio_rate(source)
            rate = rate or own
            sound = read_audio(source, sample_rate=rate).numpy()
        except BadMedia as error:
            where = f"{source} " if isinstance(source, str) else ""
            raise UserError(f"{origin}: audio: {where}{error}") from error
        found.append(Clip(sound, own, *said[origin], origin.rpartition(" ")[2]))
    return found


def _check_enough(name: str, clips: Sequence[Clip], longest: int) -> None:
    speaker, count = min(Counter(clip.speaker for clip in clips).items(), key=lambda pair: pair[1])
    if count < longest:
        whose = f" of {speaker}" if speaker else ""
        raise UserError(f"data.longest: a string of {longest} words needs as many clips, {name} has {count}{whose}")


def _by_speaker(clips: Sequence[Clip]) -> list[list[Clip]]:
    found: dict[str, list[Clip]] = {}
    for clip in clips:
        found.setdefault(clip.speaker, []).append(clip)
    return list(found.values())


def _drawn(rng: np.random.Generator, speakers: Sequence[Sequence[Clip]], shortest: int, longest: int) -> list[Clip]:
    """Clips of one speaker, each at most once."""
    clips = speakers[int(rng.integers(len(speakers)))]
    length = int(rng.integers(shortest, longest, endpoint=True))
    return [clips[i] for i in rng.choice(len(clips), length, replace=False)]


def _spoken_rows(
    rng: np.random.Generator, drawn: Sequence[Sequence[Clip]], gap: Sequence[float], rate: int, table: str
) -> Rows:
    sounds = [(_joined(rng, clips, gap, rate), rate) for clips in drawn]
    targets = [" ".join(clip.word for clip in clips) for clips in drawn]
    origin = [f"{table} rows {', '.join(clip.line for clip in clips)}" for clips in drawn]
    return Rows({"audio": sounds, "target": targets}, origin)


def _joined(rng: np.random.Generator, clips: Sequence[Clip], gap: Sequence[float], rate: int) -> np.ndarray:
    """float32 (T,): the clips with gaps of noise before, between and after."""
    level = np.sqrt(np.mean(np.concatenate([clip.sound for clip in clips]) ** 2))
    least, most = gap
    gaps = [
        FAINT * level * rng.standard_normal(round(seconds * rate))
        for seconds in rng.uniform(least, most, len(clips) + 1)
    ]
    pieces = [gaps[0]]
    for clip, after in zip(clips, gaps[1:], strict=True):
        pieces += [clip.sound, after]
    return np.concatenate(pieces).astype(np.float32)
