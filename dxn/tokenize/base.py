"""The protocols of an adapter, its preprocessor and its masking, and the adapter registry.

An adapter converts one kind of raw input to `Tokens`. A user-defined adapter implements the members
of `Preprocessor` and `Adapter` below, and the optional members that it needs. Callers access an
optional member only through a function of this module, which returns the default if it is missing:

| optional member of a preprocessor | default | function |
|---|---|---|
| `reads_files: bool` | False | `reads_files(prepare)` |
| `is_path(text) -> bool` | `reads_files` | `is_path(prepare, value)` |
| `media_type: str` | "" | `media_type(prepare)` |
| `shareable: bool` | True | `is_shareable(prepare)` |
| `has_words: bool` | False | `has_words(prepare)` |
| `has_steps: bool` | False | `has_steps(prepare)` |
| `num_tokens(raw) -> float` | 1.0 | `num_tokens(prepare, raw)` |
| `accepts(values) -> float` | 0.0 | `accepts(prepare, values)` |
| `layout_of(cells) -> Hashable` | None | `layout_of(prepare, cells)` |
| `find_format(cells)` | nothing to find | `find_format(prepare, cells)` |
| `summarize(raws, sources) -> str` | "" | `summarize(prepare, raws, sources)` |
| `advise(cells, facts) -> list[Advice]` | [] | `advise` of dxn.presets.advice |
| `without_augment() -> Preprocessor` | itself | `without_augment(prepare)` |
| `truncated(sample) -> (kept, total) or None` | None | `truncated(prepare, sample)` |
| `encode_batch(raws, rands) -> batch` | one by one | `encodes_batches(prepare, ...)` |
| `augments: bool` | True | `encodes_batches(prepare, ...)` |
| `examples(count, rand) -> list[raw]` | error | `examples` of dxn.tokenize.examples |
| `recipe() -> dict` | {} | `recipe` of dxn.tokenize.recipes |

| optional member of an adapter | default | function |
|---|---|---|
| `fit(raws) -> Self` | nothing to fit | `fit_adapter(adapter, raws)` |
| `describe(raw) -> str` | "" | `describe_columns(adapter, raw)` |
| `masking(*, ratio, span) -> Masking or None` | None | `make_masking(adapter, ...)` |
| `lookback: int` | all previous tokens | `LanguageModel` of dxn.models |
| `tokens_per_column: int` | 1 | `check_columns_are_tokens(adapter, task)` |
| `save(folder, name)` | only weights | `save_adapter(adapter, folder, name)` |
| `load(folder, name)` | only weights | `load_adapter(adapter, folder, name)` |
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

from tokenizers import Tokenizer
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.tokens import Tokens
from dxn.tokenize.media import BadMedia

# Import paths instead of classes, because the adapters import this module.
ADAPTERS: dict[str, str] = {
    "text": "dxn.tokenize.TextAdapter",
    "image": "dxn.tokenize.ImageAdapter",
    "audio": "dxn.tokenize.AudioAdapter",
    "video": "dxn.tokenize.VideoAdapter",
    "series": "dxn.tokenize.SeriesAdapter",
    "number": "dxn.tokenize.NumberAdapter",
    "category": "dxn.tokenize.CategoryAdapter",
    "date": "dxn.tokenize.DateAdapter",
}

MAX_FILE_NAME = 200  # bytes of the key of an adapter in the name of its file


class Preprocessor(Protocol):
    """The part of an adapter that runs in data workers: picklable, without learned weights.

    Attributes:
        modality: Modality of the adapter.
    """

    modality: str

    def read(self, source: Any) -> Any:
        """Read a cell of a data set (path, bytes, array or str) as a raw value.

        None means that there is no value: the cell says so, such as "N/A", or it is a video without
        the sound track that is to be read.

        Raises:
            BadMedia: If the source is invalid or exceeds a limit. The message is the reason.
        """
        ...

    def __call__(self, raw: Any, rand: random.Random | None = None) -> dict[str, Tensor]:
        """Convert a raw value to one sample.

        Args:
            raw: Value that `read` returned.
            rand: Random generator of the augmentation. None: no augmentation.
        """
        ...

    def collate(self, samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Collate samples to a padded batch, including the keys that the masking adds."""
        ...


class Adapter(Protocol):
    """An `nn.Module` that embeds one modality: its batches become `Tokens`.

    Attributes:
        modality: Name of the modality, such as "text".
        dim: Width D of a token.
        prepare: Preprocessor whose batches the adapter embeds.
    """

    modality: str
    dim: int

    @property
    def prepare(self) -> Preprocessor: ...

    def __call__(self, batch: Mapping[str, Tensor]) -> Tokens:
        """Embed a collated batch as Tokens (B, N, D) with one span, named after the modality."""
        ...


@runtime_checkable
class VocabularyAdapter(Protocol):
    """An adapter whose tokens come from a vocabulary, so that a model can predict them.

    `isinstance` checks only for the method `use_tokenizer`, because an adapter has no `embedding`
    before it is fitted.
    """

    modality: str
    dim: int
    embedding: nn.Embedding

    @property
    def prepare(self) -> VocabularyPreprocessor: ...

    def use_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Use this tokenizer and create the embedding of its tokens."""
        ...

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        # The default check of runtime_checkable uses inspect.getattr_static, which does not find
        # `embedding`: an nn.Module stores its submodules in a dictionary.
        return hasattr(other, "use_tokenizer") if cls is VocabularyAdapter else NotImplemented


class VocabularyPreprocessor(Preprocessor, Protocol):
    """A preprocessor with a tokenizer.

    Attributes:
        tokenizer: Tokenizer of the texts.
        max_len: Maximum number of tokens of a text.
    """

    tokenizer: Tokenizer
    max_len: int


class Masking(Protocol):
    """Hides a part of a sample for masked pretraining; picklable, runs in data workers.

    Attributes:
        num_outputs: Number K of values to predict per column. None: token ids are predicted by
            comparing the output with the adapter's embedding.
        is_classification: Whether token ids are predicted.
    """

    num_outputs: int | None
    is_classification: bool

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> dict[str, Tensor]:
        """Return a copy of the sample in which the content of the masked columns is replaced.

        The result depends only on the sample and rand, so it does not depend on the batch. It has
        the additional keys `masked` bool, (n,) or a grid, True at the columns to predict, and
        `masked_target`: token ids (m,), or values (m, K) together with `masked_valid` (m, K) bool,
        False at padding.
        """
        ...


def reads_files(prepare: Preprocessor) -> bool:
    """Whether a str cell is a file path, relative to the folder of the table."""
    return getattr(prepare, "reads_files", False)


def media_type(prepare: Preprocessor) -> str:
    """Return the kind of files that it reads, as HTML forms name it, such as "image/*"."""
    return getattr(prepare, "media_type", "")


def is_shareable(prepare: Preprocessor) -> bool:
    """Whether several inputs can share the adapter.

    If not, such as for the columns of a table, whose numbers have different units, each input has
    an adapter of its own. These are inputs that the rows of a table describe together, so they are
    also printed and evaluated together.
    """
    return getattr(prepare, "shareable", True)


def layout_of(prepare: Preprocessor, cells: Sequence[Any]) -> Hashable:
    """Return what the cells of all inputs of an adapter must have in common, such as channels."""
    find = getattr(prepare, "layout_of", None)
    return None if find is None else find([cell for cell in cells if cell is not None])


def find_format(prepare: Preprocessor, cells: Sequence[Any]) -> str:
    """Find out how the cells of a column are written, such as the decimal separator.

    It is called before the cells of a training are read, because a single cell can be ambiguous.
    The cells of new data are read in the format of the training.

    Returns:
        A sentence about cells that are read differently than they look; "" if there are none.
    """
    find = getattr(prepare, "find_format", None)
    present = [cell for cell in cells if cell is not None]
    return "" if find is None else find(present) or ""


def is_path(prepare: Preprocessor, value: Any) -> bool:
    """Whether a cell is a file path. A preprocessor that reads files may accept other texts too."""
    if not reads_files(prepare) or not isinstance(value, str):
        return False
    check = getattr(prepare, "is_path", None)
    return True if check is None else check(value)


def has_words(prepare: Preprocessor) -> bool:
    """Whether it accepts a list of words and returns `words` (n,), the word index of each token."""
    return getattr(prepare, "has_words", False)


def has_steps(prepare: Preprocessor) -> bool:
    """Whether raw values are series: float tensors (T, C) with C channels at T time steps.

    NaN is a missing value. The preprocessor then has the method `history(batch)`, which returns the
    normalized values (B, T, C) of a collated batch with the last step of each sample at index -1,
    and its batches contain `loc` and `scale` (B, C), with which values are denormalized. A task
    that continues the series calls `continue_from(steps)`: every sample then has the last `steps`
    time steps, after missing values if the series is shorter.
    """
    return getattr(prepare, "has_steps", False)


def check_columns_are_tokens(adapter: Any, task: str) -> None:
    """Refuse an adapter whose columns are means of several tokens, for a task about each token.

    Raises:
        UserError: If a column has several tokens.
    """
    if getattr(adapter, "tokens_per_column", 1) > 1:
        raise UserError(
            f"head={task}: needs one column per token; set adapters.text.embedding.pool=1"
        )


def num_tokens(prepare: Preprocessor, raw: Any) -> float:
    """Return the approximate number of tokens, used to batch samples of similar length.

    It must not depend on `fit` if the preprocessor reads files, because the length of a file that
    does not fit into memory is stored when it is read for the first time.
    """
    # Only comparisons matter, so a constant means that all samples have the same length.
    count = getattr(prepare, "num_tokens", None)
    return 1.0 if count is None else count(raw)


def accepts(prepare: Preprocessor, values: Sequence[Any]) -> float:
    """Score from 0 to 1 how likely the non-missing values of a column have this modality."""
    accept = getattr(prepare, "accepts", None)
    return 0.0 if accept is None else accept(values)


def summarize(prepare: Preprocessor, raws: Sequence[Any], sources: Sequence[Any]) -> str:
    """Summarize the raw values of a split and their sources in one line. Default: "".

    Args:
        prepare: The preprocessor.
        raws: Raw values. Reading one can read a file, so do not keep a list of all of them.
        sources: What the raw values were read from.
    """
    summary = getattr(prepare, "summarize", None)
    return "" if summary is None else summary(raws, sources)


def remark(prepare: Preprocessor, raw: Any) -> str:
    """Return what is unusual about a raw value, such as a category that is not known. Default: "".

    Args:
        prepare: The preprocessor.
        raw: Value that its `read` returned.
    """
    remark_of = getattr(prepare, "remark", None)
    return "" if remark_of is None or raw is None else remark_of(raw)


def choices(prepare: Preprocessor) -> Sequence[str]:
    """Return the values that a user can choose from. Default: none, any value is possible."""
    return getattr(prepare, "choices", ())


def without_augment(prepare: Preprocessor) -> Preprocessor:
    """Return a preprocessor whose `read` does not depend on augmentation.

    Validation and test samples are read with it, so that they are equal to those of a prediction,
    whose preprocessor has no augmentation.
    """
    make = getattr(prepare, "without_augment", None)
    return prepare if make is None else make()


def truncated(prepare: Preprocessor, sample: Mapping[str, Tensor]) -> tuple[int, int] | None:
    """Return (kept, total) numbers of tokens of a truncated sample; None if it is complete."""
    count = getattr(prepare, "truncated", None)
    return None if count is None else count(sample)


def encodes_batches(prepare: Preprocessor, *, augment: bool) -> bool:
    """Whether raw values can be prepared together, which is faster.

    The preprocessor then has the method `encode_batch(raws, rands)`, which returns the same batch
    as `collate` of `prepare(raw, rand)`, except that coordinates can be NaN: they explain a model,
    but do not affect its output. With `augments = False`, it draws no random numbers.

    Args:
        prepare: The preprocessor.
        augment: Whether samples are augmented, and other inputs draw from the same generators.
    """
    if not hasattr(prepare, "encode_batch"):
        return False
    return not augment or not getattr(prepare, "augments", True)


def raws_of(prepare: Preprocessor, values: Iterable[Any], kind: type) -> Iterator[Any]:
    """Yield raw values, reading those that are still sources, so that `fit` takes both.

    Args:
        prepare: The preprocessor.
        values: Raw values, or sources such as paths, as `tokens` takes them.
        kind: Type of the raw values.

    Raises:
        BadMedia: If a source cannot be read.
    """
    for value in values:
        raw = value if isinstance(value, kind) else prepare.read(value)
        if raw is not None:  # a missing value, such as the sound of a silent video
            yield raw


def fit_adapter(adapter: Adapter, raws: Sequence[Any]) -> None:
    """Fit the adapter to raw values of the training split, for example train its tokenizer.

    Args:
        adapter: The adapter.
        raws: Raw values. A file that does not fit into memory is read each time that its item is
            used, so use only as many as are needed.
    """
    fit = getattr(adapter, "fit", None)
    if fit is not None:
        fit(raws)


def describe_columns(adapter: Adapter, raw: Any) -> str:
    """Describe the columns of one raw value for a report. Default: ""."""
    describe = getattr(adapter, "describe", None)
    return "" if describe is None else describe(raw)


def make_masking(adapter: Adapter, *, ratio: float | None = None, span: int = 5) -> Masking | None:
    """Create the adapter's masking. None: the adapter does not support it, or ratio is 0.

    Args:
        adapter: Adapter that is already fitted, because a masking copies the fitted statistics.
        ratio: Fraction of the columns to mask. Default: the adapter's own ratio.
        span: Number of consecutive columns that are masked together. The text and image
            adapters ignore it.
    """
    make = getattr(adapter, "masking", None)
    return None if make is None else make(ratio=ratio, span=span)


def to_tokens(adapter: Adapter, sources: Sequence[Any]) -> Tokens:
    """Read, preprocess, collate and embed sources as one batch of Tokens.

    Raises:
        BadMedia: If a source cannot be read, or has no value.
    """
    prepare = adapter.prepare
    raws = [prepare.read(source) for source in sources]
    for source, raw in zip(sources, raws, strict=True):
        if raw is None:
            raise BadMedia(f"has no {prepare.modality} to read, got {source!r}")
    samples = [prepare(raw) for raw in raws]
    return adapter(prepare.collate(samples))


def save_adapter(adapter: Adapter, folder: Path, name: str) -> None:
    """Save the adapter's files other than weights, such as a tokenizer; name is the adapter key."""
    save = getattr(adapter, "save", None)
    if save is not None:
        save(folder, name)


def file_of_adapter(folder: Path, name: str, suffix: str) -> Path:
    """Return the path of a file of an adapter in a model folder.

    Args:
        folder: The model folder.
        name: Key of the adapter. It can be the name of a column, with any characters, and it can
            come from a downloaded model.
        suffix: Rest of the file name, such as "tokenizer.json".
    """
    # A separator would point to another folder, and a long name is refused by the file system.
    stem = quote(name, safe=" ")
    if len(stem.encode()) > MAX_FILE_NAME:
        stem = blake2b(name.encode(), digest_size=16).hexdigest()
    return folder / f"{stem}.{suffix}"


def load_adapter(adapter: Adapter, folder: Path, name: str) -> None:
    """Load the files that `save_adapter` wrote."""
    # Before the weights, because a tokenizer determines the shape of the embedding.
    load = getattr(adapter, "load", None)
    if load is not None:
        load(folder, name)
