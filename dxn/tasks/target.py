"""What a model learns to predict: how targets are read, and how they become tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch

from dxn.core.files import LABELS
from dxn.core.schema import CheckedMembers, Strict, validated
from dxn.tasks.windows import Windows, pair_windows
from dxn.tokenize.base import Tokenizer

# Target index without a loss: the default ignore_index of cross_entropy. It is never equal to a
# predicted index, so it also never counts as correct.
IGNORED = -100

Source = Literal["column", "inputs", "hashes", "stream"]


class Target(CheckedMembers):
    """Base class of targets; without any override, a cell is a number.

    For a training, the methods are called in this order: `find_format` (all cells), `see_inputs`
    (all inputs), `read` (every cell), `check_values`, `bind` (the fitted adapters), `fit` (the
    training targets). For a saved model: `load`, `bind`. An instance must be picklable, because
    each data loader worker gets a copy.

    Attributes:
        State: What a model folder stores: a pydantic model, whose fields are attributes of this
            object. `find_format` and `fit` set them.
        source: What `encode` gets as the value of a row: "column" (what `read` returned for the
            cell of the target column), "inputs" (None: the target follows from the prepared
            inputs), "hashes" (a hash of each raw input, bytes by input name, which is equal for
            rows with an equal input) or "stream" (a `Window` of the tokens of all rows).
        random: Whether `encode` gets a random generator in validation as well, with the same state
            in every epoch. If False, `rand` is None except in training.
        needs_inputs: Whether `read` compares a cell with the inputs of its row.
        needs_cells: Whether `read` gets the cells of the inputs, such as paths of files, in place
            of their raw values, because it needs no more than their headers.
        tokenizers: Tokenizers of the inputs by name, set before `read` is called if `needs_inputs`
            or `needs_cells` is set.
        reads_missing: Whether a missing cell is a target as well, which `read` gets as None.
        is_text: Whether the targets are texts, of which several can be right.
        required: Names of the inputs that every usable row must have; `bind` sets it.
        prepared_inputs: Names of the inputs whose prepared tensors `encode` uses; `bind` sets it.
        pair: How two texts become one sequence; `bind` sets it if `is_pair` is set.
        is_pair: Whether the inputs are two texts that become one sequence.
        last: Name of the input whose tokens come after those of all others; `bind` sets it. "":
            inputs have the order of their adapters.
        limit: What is cut in long samples, and the option that cuts it, for messages, see `kept`.
        separator: Text between the items of a list, such as labels, in one cell of a CSV file.
        ends: Ids of the tokens that end a text, of a public checkpoint.
        sampling: Default temperature, top_k and top_p of generated texts, of a public checkpoint.
        unused: Further options of a public checkpoint that generated texts do not follow.
    """

    State: ClassVar[type[Strict]] = Strict
    source: ClassVar[Source] = "column"
    random: ClassVar[bool] = False
    needs_inputs: ClassVar[bool] = False
    needs_cells: ClassVar[bool] = False
    reads_missing: ClassVar[bool] = False
    is_text: ClassVar[bool] = False
    tokenizers: Mapping[str, Tokenizer] = MappingProxyType({})
    required: Sequence[str] = ()
    prepared_inputs: Sequence[str] = ()
    is_pair: bool = False
    pair: Windows | None = None
    last: str = ""
    limit: tuple[str, str] = ("", "")
    separator: str = "|"
    ends: Sequence[int] = ()
    sampling: Mapping[str, float] = MappingProxyType({})
    unused: Sequence[str] = ()

    @property
    def labels(self) -> Sequence[str] | None:
        """Class names in the order of the outputs, or the vocabulary of texts. None: neither."""
        return None

    @property
    def words(self) -> str:
        """Regular expression of a word, if texts are to be split into words. "": they are not."""
        return ""

    def words_of(self, raw: Any) -> Any:
        """Return the words of a text, if `words` is set. Other values stay as they are."""
        return re.findall(self.words, raw) if self.words and isinstance(raw, str) else raw

    def find_format(self, cells: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Find out how target cells are written, before `read` is called.

        Args:
            cells: Cells of the target column in all splits, never None.
            origins: File and row of each cell.

        Returns:
            Sentences about how the cells are read, if that is not obvious.
        """
        return []

    def see_inputs(self, raws: Mapping[str, Sequence[Any]]) -> None:
        """Look at the inputs of all rows of a split, before `read` gets them row by row.

        Args:
            raws: Columns of what `read` gets as `raws`.
        """

    def read(self, cell: Any, origin: str, raws: Mapping[str, Any]) -> Any:
        """Convert a cell to a target value.

        Args:
            cell: Cell of the target column; None only if `reads_missing` is set.
            origin: File and row of the cell, for error messages.
            raws: Raw values of the row's inputs, by input name; None where missing. Empty if
                `needs_inputs` is not set, or the cells if `needs_cells` is set.

        Raises:
            UserError: If the cell is not a valid target, or does not match the inputs.
        """
        return cell

    def check_values(self, values: Iterable[Any]) -> None:
        """Check all values of the training split.

        Raises:
            UserError: If they contradict each other or their inputs.
        """

    def texts(self, values: Sequence[Any]) -> Sequence[str]:
        """Return the texts among the targets that the vocabulary of an input must also cover."""
        return ()

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Connect the target to the fitted adapters, for example to share a tokenizer.

        Args:
            adapters: Fitted adapters, by input name.

        Raises:
            UserError: If these adapters cannot be used.
        """
        if self.is_pair:
            self.pair = pair_windows(adapters)
            self.required = (self.pair.question, self.pair.context)

    def start_from(self, labels: Sequence[str]) -> None:
        """Use the labels of a checkpoint of the same task if they fit the targets of `fit`.

        Default: they are not used, so that the labels are those of the training split.
        """

    def fit(self, values: Sequence[Any]) -> None:
        """Learn properties of the targets, such as class names, from the training split."""

    def encode(self, value: Any, sample: dict[str, Any], rand: Random | None = None) -> Any:
        """Convert the value of a row to the form that `collate` expects.

        Args:
            value: See `source`.
            sample: Prepared inputs of the row: a dict of tensors for each input name. A target that
                masks inputs replaces them here.
            rand: Random generator for this sample. None: no randomness.

        Returns:
            None if the sample has no target besides its inputs.
        """
        return torch.as_tensor(value)

    def collate(self, targets: Sequence[Any]) -> Any:
        """Combine encoded targets to batch["target"]: a tensor, or a list or dict of tensors."""
        return torch.stack(list(targets))

    def length(self, value: Any) -> int:
        """Return the length of a target in tokens, used to batch samples of similar length."""
        # Most targets have a fixed size, so that only the inputs determine the length of a sample.
        return 0

    def typed(self, prediction: Any) -> Any:
        """Return the prediction of an answer with the type of the target column, for Python.

        Files, pages and JSON have the names of classes instead.
        """
        return prediction

    def kept(
        self, value: Any, raws: Mapping[str, Any], tokenizers: Mapping[str, Any]
    ) -> tuple[int, int] | None:
        """Return how many tokens of a target are learned, and how many it has. None: all are.

        Args:
            value: What `read` returned; None if the target is in the inputs.
            raws: Raw values of the inputs of the row by name; None where missing.
            tokenizers: The fitted tokenizers by name.
        """
        return None

    def describe(self, values: Sequence[Any]) -> str:
        """Return one line about target values, to be printed after the label "target: ".

        The line has no label and no full stop, for example "0 to 10, median 5".
        """
        return f"{len(values):,} values"

    def unknown(self, values: Sequence[Any]) -> list[str]:
        """Return the first class, label or tag of each row that the training split does not have.

        Rows whose classes are all known are left out.
        """
        return []

    def state(self) -> dict[str, Any]:
        """Return the fields of `State` as JSON-serializable data."""
        fields = {name: getattr(self, name) for name in self.State.model_fields}
        return self.State.model_construct(**fields).model_dump(mode="json", warnings=False)

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`, which may come from an untrusted source.

        Raises:
            UserError: If a value is missing or invalid.
        """
        for name, value in validated(self.State, dict(state), LABELS):
            setattr(self, name, value)
