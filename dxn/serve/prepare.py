"""From the values of a request to prepared samples, and from raw values to those of an answer.

No value is ever opened as a path or an URL.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dxn.core.errors import UserError
from dxn.core.untrusted import shortened
from dxn.data.dataset import Samples
from dxn.runs.predictor.predictor import Predictor
from dxn.tokenize.base import Reader, Tokenizer
from dxn.tokenize.text.chat import Conversation

BASE64 = "base64"  # key of the object that contains a file in a JSON request
# Media types of the files that `Reader.write` writes.
TYPES = {".png": "image/png", ".wav": "audio/wav", ".gif": "image/gif"}
MAX_DEPTH = 4  # of nested lists; a series has two levels
LIGHT = 2000  # characters; preparing a shorter text takes less time than passing it to a thread


@dataclass(frozen=True)
class Prepared:
    """The samples of one request.

    Args:
        cells: The values of each sample by input name.
        items: Each sample, as `Samples.batch_of` or `Samples.collate` needs it.
        samples: The opened samples, which can also collate the items of other requests.
    """

    cells: Sequence[Mapping[str, Any]]
    items: Sequence[Mapping[str, Any]]
    samples: Samples

    def __len__(self) -> int:
        return len(self.items)

    def raws(self, i: int) -> dict[str, Any]:
        """Return the raw values of sample i by input name."""
        row = self.samples.rows[i]
        return {name: column[row] for name, column in self.samples.opened.raws.items()}

    def note(self, i: int, tokenizers: Mapping[str, Tokenizer]) -> str:
        """Return what is unusual about the values of sample i, such as an unknown category."""
        remarks: list[str] = []
        for name, column in self.samples.opened.raws.items():
            # A file would be decoded again.
            remark = ""
            if not tokenizers[name].reader.files:
                remark = tokenizers[name].remark([column[self.samples.rows[i]]])
            remarks += [f"{name}: {remark}"] if remark else []
        return "; ".join(remarks)


def takes_text(prepare: Tokenizer) -> bool:
    """Whether an input can be written as a text, unlike a picture."""
    return not prepare.reader.is_path("")


def to_cells(sample: Mapping[str, Any], predictor: Predictor, where: str) -> dict[str, Any]:
    """Check the values of a sample, and decode the files among them.

    Args:
        sample: Values by input name: texts, numbers, lists, bytes, or {"base64": ...} for a file.
        predictor: The model.
        where: Name of the sample, for messages.

    Raises:
        UserError: If a value is of another kind.
    """
    cells: dict[str, Any] = {}
    tokenizers = predictor.tokenizers
    for name, value in sample.items():
        if value is not None:
            cells[name] = _to_cell(value, tokenizers[name], f"{where}{name}")
    return cells


def checked_samples(
    samples: Sequence[Mapping[str, Any]], predictor: Predictor, *, together: bool
) -> Prepared:
    """Check, decode and prepare the samples of a request.

    Args:
        samples: Values by input name of each sample.
        predictor: The model.
        together: Whether the texts of a batch are encoded together, which takes less time. They
            then have no coordinates.

    Raises:
        UserError: If a sample cannot be used.
    """
    several = len(samples) > 1
    cells = [
        to_cells(sample, predictor, f"sample {i + 1}: " if several else "")
        for i, sample in enumerate(samples)
    ]
    opened = predictor.samples(cells)
    if len(opened) != len(cells):
        usable = set(opened.rows)
        missing = next(i for i in range(len(cells)) if i not in usable)
        needed = " or ".join(predictor.inputs)
        raise UserError(f"sample {missing + 1}: has no value for an input; set {needed}")
    items = [opened.item(i) if together else opened[0, i] for i in range(len(opened))]
    return Prepared(cells, items, opened)


def is_light(samples: Sequence[Mapping[str, Any]]) -> bool:
    """Whether samples can be prepared in the event loop, because they are small."""
    length = 0
    for sample in samples:
        for value in sample.values():
            if not isinstance(value, str | int | float | None):
                return False
            length += len(value) if isinstance(value, str) else 1
    return length <= LIGHT


def value_data(key: str, value: Any, reader: Reader) -> dict[str, Any]:
    """Return a created value as JSON data, in the form in which a request contains it.

    Args:
        key: Its key in the data.
        value: The raw value.
        reader: Reader of such values.
    """
    if isinstance(value, str):
        return {key: value}
    if value.ndim == 2:  # a series (T, C)
        return {key: value.tolist()}
    suffix = reader.formats[0]
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"value{suffix}"
        reader.write(value, path)
        content = path.read_bytes()
    return {key: {BASE64: base64.b64encode(content).decode()}, "type": TYPES[suffix]}


def _to_cell(value: Any, prepare: Tokenizer, name: str) -> Any:
    if isinstance(value, Mapping):
        value = _decoded(value, name)
    if isinstance(value, bytes):
        return value if prepare.reader.files else _as_text(value, name)
    if isinstance(value, str):
        check_unicode(value, name)
        # The reader would open the file. A path on this machine must not be exposed to
        # clients.
        if prepare.reader.is_path(value):
            raise UserError(
                f"{name}: must be the content of a file, and not a path or URL, which is never "
                f"opened; got the text {shortened(value)}; send the file as multipart/form-data, "
                f'or as {{"{BASE64}": "..."}} in JSON'
            )
        return value
    if isinstance(value, list):
        # A reader may read a list of paths, so an input of files takes only numbers.
        _check_list(value, name, only_numbers=prepare.reader.files)
        return value
    # JSON contains no conversation: `dxn.serve.openai` has made it of a text.
    if isinstance(value, bool | int | float | Conversation):
        return value
    raise UserError(f"{name}: must be a text, a number, a list or a file, got {shortened(value)}")


def _decoded(value: Mapping[str, Any], name: str) -> bytes:
    """Return the bytes of a file in a JSON request."""
    content = value.get(BASE64)
    if set(value) != {BASE64} or not isinstance(content, str):
        raise UserError(
            f'{name}: an object must be {{"{BASE64}": "..."}} with the content of a file, got '
            f"the keys {shortened(', '.join(map(str, value)))}"
        )
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise UserError(
            f"{name}: must be valid base64, got {shortened(content)}; encode the bytes of the file "
            "without line breaks"
        ) from None


def _as_text(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(
            f"{name}: must be a text in UTF-8, got another kind of file of {len(content):,} bytes"
        ) from None


def check_unicode(text: str, name: str) -> None:
    """Raise UserError if a text contains half of a character."""
    # JSON can contain halves of surrogate pairs, which are not characters.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{name}: contains an incomplete surrogate pair; send valid text") from None


def _check_list(values: list[Any], name: str, *, only_numbers: bool, depth: int = 1) -> None:
    if depth > MAX_DEPTH:
        raise UserError(f"{name}: lists can be nested {MAX_DEPTH} levels deep at most")
    for value in values:
        if isinstance(value, list):
            _check_list(value, name, only_numbers=only_numbers, depth=depth + 1)
        elif isinstance(value, str) and not only_numbers:
            check_unicode(value, name)
        elif value is not None and not isinstance(value, bool | int | float):
            kinds = "numbers" if only_numbers else "texts or numbers"
            raise UserError(f"{name}: a list must contain {kinds}, got {shortened(value)}")
