"""Estimators with the interface of scikit-learn.

from dxn.sklearn import Classifier

Classifier().fit(frame, labels).predict(new_frame)
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

import dxn
from dxn.core.display import silence
from dxn.core.files import MODEL
from dxn.data.sources.memory import is_frame, table_of
from dxn.data.splits.split import divide
from dxn.data.tables.csv import filled_names
from dxn.data.tables.read import as_list, column_name
from dxn.runs.predictor.predictor import Predictor
from dxn.tokenize.base import READERS
from dxn.tokenize.cells.category import CategoryReader
from dxn.tokenize.cells.cell_values import has_no_value
from dxn.tokenize.column_profile import LazyReaders, modality_of, profile_of
from dxn.tokenize.text.tokenizer import TextReader

TARGET = "target"  # column with y, unless X has a column of this name
COLUMN = "x"  # name of a series without a name
MIN_SAMPLES = 2
# With fewer rows, all are needed to train, and no epoch is chosen by a validation split.
MIN_DIVIDED = 40
FRACTIONS = (0.9, 0.1)
MAX_SEED = 2**31 - 1
# N803 is off where scikit-learn calls the rows X.


class _Estimator(BaseEstimator):
    """What both estimators share."""

    head: str  # task of the model
    model_: Predictor
    files_: dict[str, bytes]
    trust_: Sequence[str]

    def __init__(
        self,
        *,
        epochs: int = 20,
        options: Mapping[str, Any] | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ):
        self.epochs = epochs
        self.options = options
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # A missing value has no token.
        tags.input_tags.allow_nan = True
        tags.non_deterministic = self.random_state is None
        return tags

    def __getstate__(self) -> dict[str, Any]:
        # The files of the model folder are kept, because dxn loads them in every later version.
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "model_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "files_" in state:
            self.model_ = _load(state["files_"], state["trust_"])

    def _fit(self, frame: pd.DataFrame, target: list[Any], data_options: Mapping[str, Any]) -> None:
        """Train a model on a data frame, and keep it in memory."""
        name = TARGET
        while name in frame.columns:
            name += "_"
        # Without the rows that say nothing. The frame of the caller must not change.
        is_empty = _are_empty(frame)
        if is_empty.all():
            raise ValueError("all cells of X are missing, so there is nothing to learn from")
        rows = frame.assign(**{name: target})[~is_empty]
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(MAX_SEED)
        chosen = self.options or {}
        options = {
            "head": self.head,
            "seed": int(seed),
            "trainer.epochs": self.epochs,
            "data.fractions": None,  # divided here, so that a column called split is an input
            # Not needed: the caller evaluates.
            "report": False,
            **(data_options or _columns_by_modality(frame, chosen)),
            **chosen,
        }
        trust = options.get("trust") or ()
        data = {"train": rows}
        if len(rows) >= MIN_DIVIDED:
            labels = (
                rows[name].tolist() if isinstance(self, ClassifierMixin) else [None] * len(rows)
            )
            train, validation = divide(labels, FRACTIONS, seed=int(seed))
            # A class of a single row is learned.
            known = {labels[i] for i in train}
            train = sorted([*train, *(i for i in validation if labels[i] not in known)])
            validation = [i for i in validation if labels[i] in known]
            data = {"train": rows.iloc[train], "validation": rows.iloc[validation]}
        with tempfile.TemporaryDirectory() as folder, self._output():
            run = dxn.train(data, target=name, run=Path(folder) / "run", **options)
            model = run.folder / MODEL
            files = [path for path in sorted(model.rglob("*")) if path.is_file()]
            contents = {path.relative_to(model).as_posix(): path.read_bytes() for path in files}
        self.model_ = _load(contents, trust)
        self.files_, self.trust_ = contents, trust

    def _has_input(self, frame: pd.DataFrame) -> NDArray[np.bool_]:
        """Return whether each row (n,) has a value that the model reads."""
        used = set(self.model_.columns.values())
        names = map(column_name, filled_names(map(str, frame.columns)))
        return ~_are_empty(frame.loc[:, [name in used for name in names]])

    def _checked(self, X: Any) -> pd.DataFrame:  # noqa: N803
        """Return new rows as a data frame, after comparing their columns with those of `fit`."""
        X = _framed(X)
        if is_frame(X):
            validate_data(self, X, reset=False, skip_check_array=True)
            return X
        rows: Any = validate_data(self, X, reset=False, ensure_all_finite="allow-nan")
        return _numbered(rows)

    @contextlib.contextmanager
    def _kept_if_failed(self) -> Iterator[None]:
        """Restore all attributes after an error, so that the old model keeps its own classes."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    @contextlib.contextmanager
    def _output(self) -> Iterator[None]:
        if self.verbose:
            yield
            return
        # Not by replacing sys.stdout, which belongs to all threads of the process.
        with silence():
            yield


class Classifier(ClassifierMixin, _Estimator):
    """A transformer that classifies the rows of a data frame or an array.

    The columns of a data frame can be texts, paths of images and sounds, numbers, categories and
    dates, as for `dxn.train`. The columns of an array are numbers. A series or a list of texts is
    one column.

    Args:
        epochs: Maximum number of passes over the rows.
        options: Options of `dxn.train`, such as {"backbone": "small", "optimizer.lr": 1e-3}.
        random_state: Seed, or a random generator that draws one.
        verbose: Whether to print the progress of the training.

    Attributes:
        classes_: The classes (k,), sorted.
        class_prior_: Share (k,) of each class in the training, which is the probability for a row
            without any value.
        model_: The trained `dxn.Predictor`.
    """

    head = "classify"

    def fit(self, X: Any, y: ArrayLike) -> Self:  # noqa: N803
        """Train on the rows X with the classes y (n,).

        Raises:
            UserError: A ValueError, if the data or an option cannot be used.
        """
        with self._kept_if_failed():
            frame, labels, data_options = _validated(self, X, y, numeric=False)
            check_classification_targets(labels)
            classes, index = np.unique(labels, return_inverse=True)
            if len(classes) < 2:
                raise ValueError("Classifier needs samples of at least 2 classes, got 1 class")
            # Not the classes themselves: two of them can have the same text, such as 1 and "1".
            self._fit(frame, [f"class {i}" for i in index], data_options)
            self.classes_ = classes
            self.class_prior_ = np.bincount(index) / len(index)
        return self

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Return the most probable class (n,) of each row."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return the probability (n, k) of each class for each row."""
        check_is_fitted(self)
        frame = self._checked(X)
        names = [f"class {i}" for i in range(len(self.classes_))]
        has_input = self._has_input(frame)
        values = np.tile(self.class_prior_, (len(frame), 1))
        if has_input.any():
            table = self.model_.predict_proba(frame.loc[has_input])
            # A class of which all rows were empty has no probability.
            values[has_input] = table.reindex(columns=names, fill_value=0.0)
        return values / values.sum(axis=1, keepdims=True)


class Regressor(RegressorMixin, _Estimator):
    """A transformer that predicts a number for each row of a data frame or an array.

    Args and the kinds of columns are those of `Classifier`.

    Attributes:
        mean_: Mean of the training, which is the prediction for a row without any value.
        model_: The trained `dxn.Predictor`.
    """

    head = "regress"

    def fit(self, X: Any, y: ArrayLike) -> Self:  # noqa: N803
        """Train on the rows X with the numbers y (n,).

        Raises:
            UserError: A ValueError, if the data or an option cannot be used.
        """
        with self._kept_if_failed():
            frame, numbers, data_options = _validated(self, X, y, numeric=True)
            values = [float(number) for number in numbers]
            self._fit(frame, values, data_options)
            self.mean_ = float(np.mean(values))
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return the predicted number (n,) of each row."""
        check_is_fitted(self)
        frame = self._checked(X)
        has_input = self._has_input(frame)
        values = np.full(len(frame), self.mean_)
        if has_input.any():
            values[has_input] = self.model_.predict(frame.loc[has_input])["prediction"]
        return values


def _validated(
    estimator: _Estimator,
    X: Any,  # noqa: N803
    y: Any,
    *,
    numeric: bool,
) -> tuple[pd.DataFrame, NDArray[Any], dict[str, Any]]:
    """Return X as a data frame, y as an array (n,), and the options for the columns."""
    X = _framed(X)
    if is_frame(X):
        validate_data(estimator, X, y, skip_check_array=True)
        labels = column_or_1d(y, warn=True)
        if pd.isna(labels).any():
            raise ValueError("y contains missing values (NaN or None); remove these rows")
        if len(labels) != len(X):
            raise ValueError(f"X has {len(X)} rows, but y has {len(labels)}")
        return X, labels, {}
    checked: Any = validate_data(
        estimator,
        X,
        y,
        ensure_all_finite="allow-nan",
        ensure_min_samples=MIN_SAMPLES,
        y_numeric=numeric,
    )
    rows, labels = checked
    frame = _numbered(rows)
    # Otherwise a column of few different numbers could be taken for categories.
    return frame, labels, {"data.number": list(frame.columns)}


def _framed(X: Any) -> Any:  # noqa: N803
    """Return a series or a list of texts as a data frame of one column, and other rows unchanged.

    The vectorizers of scikit-learn take texts in this form.
    """
    if isinstance(X, pd.Series):
        return X.to_frame(COLUMN if X.name is None else str(X.name))
    is_list = isinstance(X, list | tuple) or (isinstance(X, np.ndarray) and X.ndim == 1)
    are_texts = is_list and len(X) and all(isinstance(cell, str) for cell in X)
    return pd.DataFrame({COLUMN: X}) if are_texts else X


def _columns_by_modality(frame: pd.DataFrame, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that make all columns inputs, also those that dxn.train leaves out.

    The columns of a table can be row numbers, or made from the target. The caller of an estimator
    has chosen them.

    Args:
        frame: The rows without the target.
        chosen: Options of the caller, which can choose the columns of some modalities.
    """
    # As dxn.train reads them: data__exclude is data.exclude.
    chosen = {name.replace("__", "."): value for name, value in chosen.items()}
    if {"adapters", "data.exclude"} & chosen.keys():
        return {}
    readers = LazyReaders({modality: modality for modality in READERS}, {})
    named = {modality: chosen.get(f"data.{modality}") for modality in READERS}
    taken = {str(name) for names in named.values() for name in as_list(names)}
    columns: dict[str, list[str]] = {}
    for (name, cells), dtype in zip(table_of(frame).columns.items(), frame.dtypes, strict=True):
        profile = profile_of(cells)
        modality = modality_of(profile, readers)
        if isinstance(dtype, pd.CategoricalDtype):
            modality = CategoryReader.modality
        elif modality is None and profile.types == {str}:
            modality = TextReader.modality
        if profile.values and modality is not None and name not in taken:
            columns.setdefault(modality, []).append(name)
    return {f"data.{m}": names for m, names in columns.items() if named[m] is None}


def _are_empty(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Return whether each row (n,) has no value in any column."""
    is_empty = np.ones(len(frame), bool)
    for i in range(frame.shape[1]):
        cells = frame.iloc[:, i]
        is_number = pd.api.types.is_numeric_dtype(cells.dtype)
        is_empty &= (cells.isna() if is_number else cells.map(has_no_value)).to_numpy(dtype=bool)
    return is_empty


def _numbered(rows: NDArray[Any]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[f"x{i}" for i in range(rows.shape[1])])


def _load(files: Mapping[str, bytes], trust: Sequence[str]) -> Predictor:
    """Load the model from the files of its folder."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return dxn.load(folder, dtype="float32", trust=trust)
