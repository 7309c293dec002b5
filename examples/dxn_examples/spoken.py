"""Data for speech recognition: recordings of single words from a table, concatenated to strings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dxn.core.errors import UserError
from dxn.data.rows import TARGET, InputSpec, Rows, Source
from dxn.data.splits.split import UNDIVIDED, complete_splits, divide_table
from dxn.data.tables.read import Table, read_table
from dxn.datasets.checks import check_counts
from dxn.tokenize.audio.reader import AudioReader, audio_rate
from dxn.tokenize.base import BadMedia
from dxn_examples.dialled import check_lengths

# Fractions of training, validation and test clips, if the table does not define the splits.
FRACTIONS = (0.8, 0.1, 0.1)
# Level of the noise between words, relative to the words: 20 log10(0.03) = -30 dB, as in a quiet
# room.
GAP_NOISE = 0.03


@dataclass(frozen=True)
class Clip:
    """A recording of one spoken word.

    Args:
        sound: Waveform (T,), float32, at the sample rate of the data set.
        rate: Original sample rate of the file in Hz.
        word: The word.
        speaker: Name of the speaker.
        line: Number of the clip's row in the table.
    """

    sound: np.ndarray
    rate: int
    word: str
    speaker: str
    line: str


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
    """Create a data set of word strings from a table of recordings of single words (clips).

    The input is "audio", a float32 waveform (T,) with its sample rate. A target is a string such as
    "3 0 7". All clips of a string are from the same speaker. A clip is used in one split only, and
    at most once per string. Strings may repeat. If the table has no validation split, 10% of the
    training clips become the validation split, stratified by word and speaker. Clips are resampled
    to the sample rate of the first training clip.

    Args:
        path: A table with one row per clip.
        audio: Column with the paths of audio files, relative to the table.
        target: Column with the words.
        speaker: Column with the speakers. Null: a string may contain clips of several speakers.
        split: Column with the name of each clip's split. Default: a column called split if there is
            one, otherwise random splits with fractions of 0.8, 0.1 and 0.1.
        holdout: Column and value (or list of values) that select the test clips.
        num_train: Number of training strings.
        num_validation: Number of validation strings.
        num_test: Number of test strings.
        shortest: Minimum number of words of a string.
        longest: Maximum number of words of a string. All lengths are equally likely.
        gap: Minimum and maximum duration in seconds of the gaps before, between and after words.
        seed: Random seed of the splits and strings.

    Raises:
        UserError: If an option is out of range, if a column does not exist, if a clip cannot be
            read, if a split has no clips, or if a speaker has fewer clips in a split than the
            longest string has words.
    """
    counts = check_counts(num_train, num_validation, num_test)
    check_lengths(shortest, longest)
    if len(gap) != 2 or not 0 <= gap[0] <= gap[1]:
        raise UserError(
            f"data.gap: must be two durations in seconds, 0 <= minimum <= maximum, got {list(gap)}"
        )
    notes: list[str] = []
    table = read_table(Path(path))
    rows_by_split = _split_clips(
        table,
        {"audio": audio, TARGET: target, "speaker": speaker},
        split=split,
        holdout=holdout,
        seed=seed,
        notes=notes,
    )
    clips: dict[str, list[Clip]] = {}
    rate = None  # sample rate of the first training clip, which is read first
    for name in counts:
        if not len(rows_by_split.get(name, ())):
            raise UserError(f"{path}: the {name} split has no clips; add some, or use other splits")
        clips[name] = _read_clips(rows_by_split[name], rate)
        rate = rate or clips[name][0].rate
    assert rate is not None
    # Check all splits before drawing strings, so that errors do not depend on random choices.
    for name in counts:
        _check_enough_clips(name, clips[name], longest)
    # All splits share one generator, so the order of the splits is fixed.
    rng = np.random.default_rng(seed)
    splits: dict[str, Rows] = {}
    for name, count in counts.items():
        by_speaker = _by_speaker(clips[name])
        strings = [_draw_string(rng, by_speaker, shortest, longest) for _ in range(count)]
        splits[name] = _join_strings(rng, strings, gap, rate, Path(path).name)
    notes += _notes(clips, rate)
    inputs = {"audio": InputSpec(f"{audio}, joined", "audio")}
    return Source(splits, inputs, target=f"{target}, joined", task="generate", notes=notes)


def _split_clips(
    table: Table,
    columns: Mapping[str, str | None],
    *,
    split: str | None,
    holdout: Mapping[str, Any] | None,
    seed: int,
    notes: list[str],
) -> dict[str, Rows]:
    """Return the clips of each split: rows with an audio path and the target (word, speaker)."""
    # Check the names of all columns before reading files, which takes long.
    for key, column in columns.items():
        if column is not None:
            table.column(column, f"data.{key}")
    if not holdout and split is not None:
        table.column(split, "data.split")
    parts = divide_table(
        table,
        {UNDIVIDED: np.arange(len(table))},
        split=None if holdout else split,
        holdout=holdout,
        fractions=FRACTIONS,
        notes=notes,
    )
    # The target is the pair (word, speaker), so that random splits are stratified by both.
    clips = _clip_rows(table, columns)
    rows = {name: clips.take(numbers) for name, numbers in parts.items()}
    return complete_splits(rows, FRACTIONS, seed=seed, notes=notes)


def _clip_rows(table: Table, columns: Mapping[str, str | None]) -> Rows:
    sources: list[str] = []
    labels: list[tuple[str, str]] = []
    for i in range(len(table)):
        values: dict[str, Any] = {}
        for key, column in columns.items():
            # Without a column of speakers, all clips have the same speaker "".
            values[key] = "" if column is None else table.columns[column][i]
            if values[key] is None:
                raise UserError(
                    f"{table.origin(i)}: column {column!r} ({key}) has no value; add it"
                )
        sources.append(str(table.origins.file(i).parent / values["audio"]))
        labels.append((str(values[TARGET]), str(values["speaker"])))
    return Rows({"audio": sources, TARGET: labels}, table.origins)


def _read_clips(rows: Rows, rate: int | None) -> list[Clip]:
    """Read the clips of a split.

    Args:
        rows: Rows with audio paths and targets (word, speaker).
        rate: Sample rate in Hz to which clips are resampled. None: that of the first clip.
    """
    clips: list[Clip] = []
    columns = zip(rows.cells["audio"], rows.cells[TARGET], rows.origin, strict=True)
    for source, (word, speaker), origin in columns:
        try:
            file_rate = audio_rate(source)
            rate = rate or file_rate
            sound = AudioReader(sample_rate=rate).read(source)
            assert sound is not None  # `audio_rate` refuses a video without sound
        except BadMedia as error:
            raise UserError(f"{origin}: audio: {source}: {error}") from error
        # An origin is like "my.csv row 17".
        line = origin.rpartition(" ")[2]
        clips.append(Clip(sound.numpy(), file_rate, word, speaker, line))
    return clips


def _check_enough_clips(name: str, clips: Sequence[Clip], longest: int) -> None:
    by_speaker = Counter(clip.speaker for clip in clips)
    speaker, count = min(by_speaker.items(), key=lambda pair: pair[1])
    if count < longest:
        of_speaker = f" of {speaker}" if speaker else ""
        raise UserError(
            f"data.longest: must be at most {count}, because the {name} split has only {count} "
            f"clips{of_speaker}, got {longest}"
        )


def _by_speaker(clips: Sequence[Clip]) -> list[list[Clip]]:
    by_speaker: dict[str, list[Clip]] = {}
    for clip in clips:
        by_speaker.setdefault(clip.speaker, []).append(clip)
    return list(by_speaker.values())


def _draw_string(
    rng: np.random.Generator, by_speaker: Sequence[Sequence[Clip]], shortest: int, longest: int
) -> list[Clip]:
    """Draw distinct clips of one speaker."""
    # All speakers are equally likely, even if they have different numbers of clips.
    clips = by_speaker[int(rng.integers(len(by_speaker)))]
    length = int(rng.integers(shortest, longest, endpoint=True))
    return [clips[i] for i in rng.choice(len(clips), length, replace=False)]


def _join_strings(
    rng: np.random.Generator,
    strings: Sequence[Sequence[Clip]],
    gap: Sequence[float],
    rate: int,
    table: str,
) -> Rows:
    """Concatenate the clips of each string. `table` is the file name for the origin of the rows."""
    sounds: list[tuple[np.ndarray, int]] = []
    targets: list[str] = []
    origin: list[str] = []
    for clips in strings:
        sounds.append((_join(rng, clips, gap, rate), rate))
        targets.append(" ".join(clip.word for clip in clips))
        lines = ", ".join(clip.line for clip in clips)
        origin.append(f"{table} rows {lines}")
    return Rows({"audio": sounds, TARGET: targets}, origin)


def _join(
    rng: np.random.Generator, clips: Sequence[Clip], gap: Sequence[float], rate: int
) -> np.ndarray:
    """Concatenate clips, with gaps of noise before, between and after them, to float32 (T,)."""
    # Scale the noise with the root mean square of the words, so that loud and quiet recordings have
    # the same signal-to-noise ratio.
    level = np.sqrt(np.mean(np.concatenate([clip.sound for clip in clips]) ** 2))
    shortest, longest = gap
    gaps = [
        GAP_NOISE * level * rng.standard_normal(round(seconds * rate))
        for seconds in rng.uniform(shortest, longest, len(clips) + 1)
    ]
    pieces = [gaps[0]]
    for clip, after in zip(clips, gaps[1:], strict=True):
        pieces += [clip.sound, after]
    return np.concatenate(pieces).astype(np.float32)


def _notes(clips: Mapping[str, Sequence[Clip]], rate: int) -> list[str]:
    counts = ", ".join(f"{name} {len(split_clips):,}" for name, split_clips in clips.items())
    notes = [f"strings are concatenated from single clips: {counts}"]
    num_resampled = sum(clip.rate != rate for clip in chain.from_iterable(clips.values()))
    if num_resampled:
        notes.append(f"resampled to {rate:,} Hz: {num_resampled:,} clips")
    return notes
