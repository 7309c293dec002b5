"""The command `dxn serve`: the model, the rows that the page offers as examples, and the port."""

from __future__ import annotations

import importlib
import io
import json
import socket
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dxn.core.display import print_line
from dxn.core.errors import UserError
from dxn.core.randomness import spaced_rows
from dxn.data.cell_paths import OutsidePath
from dxn.data.rows import TARGET, Rows
from dxn.report.examples import target_text, true_line
from dxn.runs.evaluation.data import rows_of_run
from dxn.runs.folder import name_of
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.writing import Writer
from dxn.serve.conversation import example_messages, has_conversation_page
from dxn.serve.options import KEY_VARIABLE, ServeOptions, read_key
from dxn.serve.prepare import takes_text
from dxn.tasks.space import AnswerKind
from dxn.tokenize.base import BadMedia, Tokenizer
from dxn.viz.drawers import Shown, get_drawer
from dxn.viz.sample import shown_inputs

LIBRARIES = ("fastapi", "uvicorn", "prometheus_client", "python_multipart")
BACKLOG = 512  # connections that the operating system accepts before the server does
# Of the examples of the page.
MAX_BYTES = 5_000_000  # of a file; all examples are in memory
MAX_TEXT = 20_000  # characters
MAX_PROMPT = 60  # characters of a text that a language model continues
MAX_NAME = 60  # characters of a target
DIGITS = 6  # of the numbers of a series


def serve(
    load: Callable[..., Predictor],
    run: str | None,
    source: str | None,
    options: ServeOptions,
    *,
    is_chosen: bool,
    trust: Sequence[str],
) -> int:
    """Serve a model until a signal arrives.

    Args:
        load: Function that loads the model.
        run: Its run folder.
        source: The public checkpoint, without a run.
        options: Options of the server.
        is_chosen: Whether the user has set the number of examples.
        trust: Top-level packages besides dxn whose code the run folder may use.
    """
    key = read_key()
    _require_libraries()
    # Before the model is loaded, so that a port that is in use is reported at once.
    listener = bind(options.host, options.port)
    predictor = load()
    examples = examples_of(run, predictor, options, is_chosen=is_chosen, trust=trust)
    # The path itself must not be shown to clients.
    name = name_of(Path(run or source or ""))

    # The libraries are optional, so these modules cannot be imported without them.
    app_module = importlib.import_module("dxn.serve.app")
    server = importlib.import_module("dxn.serve.server")
    app = app_module.make_app(predictor, options, key=key, name=name, examples=examples)
    server.run(app, options, listener, ready=lambda url: _print_start(url, options, key))
    print_line("stopped")
    return 0


def bind(host: str, port: int) -> socket.socket:
    """Reserve a TCP port.

    Raises:
        UserError: If it is in use, or the address does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small answers at once (TCP_NODELAY) only if the protocol is stated. Otherwise an
    # answer on a kept connection waits 40 ms for the acknowledgement of its headers.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # Otherwise a server could not start again for a minute after it was stopped.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UserError(
            f"host, port: cannot listen on {host}:{port} ({error.strerror}); choose another port, "
            "such as port=8001, or an address of this machine"
        ) from error
    return listener


def examples_of(
    run: str | None,
    predictor: Predictor,
    options: ServeOptions,
    *,
    is_chosen: bool,
    trust: Sequence[str],
) -> list[Any]:
    """Return rows of the data of the run. Without them, the page works too."""
    # Test rows can be private, so other machines see them only if the user says so.
    if not options.examples or run is None:
        return []
    if not options.is_local and not is_chosen:
        print_line(
            "note: the page shows no test rows, because other machines can reach it; "
            "examples=8 shows them"
        )
        return []
    try:
        return read_examples(run, predictor, options.examples, trust)
    except (UserError, OSError) as error:
        print_line(f"note: the page has no examples: {str(error).splitlines()[0]}")
        return []


def read_examples(
    run: str, predictor: Predictor, count: int, trust: Sequence[str]
) -> list[dict[str, Any]]:
    """Read rows of the test split of a run, evenly spaced.

    Args:
        run: The run folder.
        predictor: The model.
        count: Number of rows.
        trust: Top-level packages besides dxn whose code the folder may use.

    Returns:
        Of each row, the "texts" of the inputs that can be written as a text, the contents of the
        "files" of the others, both by input name, and the "target" as a text ("": none). A forecast
        also has its "true" values, if there are not too many. For a model of conversations, the
        "messages" before the last answer instead of texts.

    Raises:
        UserError: If the data of the run cannot be read.
    """
    # A folder from an untrusted source could name any file as its data, see SECURITY.md.
    rows = rows_of_run(predictor, run, advice="examples=0 hides this line", trust=trust)
    chosen = spaced_rows(len(rows), count)
    examples = [_example(rows, row, predictor) for row in chosen]
    writer = Writer(predictor.model, predictor.task)
    if has_conversation_page(predictor, writer):
        assert writer.language is not None
        conversations: list[dict[str, Any]] = []
        for row, example in zip(chosen, examples, strict=True):
            files = example["files"]
            types = {predictor.tokenizers[name].modality: name for name in files}
            turns = example_messages(rows.cells[writer.language.name][row], types, MAX_TEXT)
            # None: the page cannot show it.
            if turns is not None:
                conversations.append({"messages": turns[0], "files": files, "target": turns[1]})
        return conversations
    if writer.takes_prompt:
        # The start of a text, without a part of a word.
        for example in examples:
            for name, text in example["texts"].items():
                start = text.strip()[:MAX_PROMPT]
                example["texts"][name] = start.rsplit(maxsplit=1)[0] if " " in start else start
    return [example for example in examples if example["texts"] or example["files"]]


def _example(rows: Rows, row: int, predictor: Predictor) -> dict[str, Any]:
    texts: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for name, prepare in predictor.tokenizers.items():
        cell = rows.cells[name][row] if name in rows.cells else None
        if cell is None:
            continue
        text = _text_of(cell, prepare)
        if text is not None:
            texts[name] = text[:MAX_TEXT]
        elif (content := _file_of(name, cell, prepare)) is not None:
            files[name] = content
    target = rows.cells[TARGET][row] if TARGET in rows.cells else None
    example: dict[str, Any] = {"texts": texts, "files": files, "target": ""}
    if target is None:
        return example
    true = predictor.task.true_answer(target)
    if true is not None and len(json.dumps(true)) <= MAX_TEXT:
        example["true"] = true
    return {**example, "target": _target_line(rows, row, predictor)[:MAX_NAME]}


def _target_line(rows: Rows, row: int, predictor: Predictor) -> str:
    """Return a target as a line: of tags, the entities; of a mask, the name of its file."""
    task, cell = predictor.task, rows.cells[TARGET][row]
    # Their cells have tags or positions, which only the text makes readable.
    if task.answer_kind in (AnswerKind.TAGS, AnswerKind.SPAN):
        values = {name: rows.cells[name][row] for name in task.target.required}
        tokenizers = predictor.tokenizers
        raws = {n: tokenizers[n].reader.read(v) for n, v in values.items() if v is not None}
        true = task.target.read(cell, rows.origin[row], raws)
        return true_line(task, true, shown_inputs(predictor.adapters, raws))
    text = target_text(cell)
    # A path on this machine must not be exposed to clients.
    return Path(text).name if task.masks_in else text


def _text_of(cell: Any, prepare: Tokenizer) -> str | None:
    """Return a cell as a text; None if it is a file, or an array with too many numbers."""
    if prepare.reader.is_path(cell) or isinstance(cell, bytes) or not takes_text(prepare):
        return None
    if isinstance(cell, np.ndarray | Tensor):
        # A series of one channel is shorter without its second axis.
        is_flat = cell.ndim == 2 and cell.shape[1] == 1
        cell = _rounded((cell[:, 0] if is_flat else cell).tolist())
        text = json.dumps(cell)
        return text if len(text) <= MAX_TEXT else None
    if isinstance(cell, list | tuple):
        is_words = all(isinstance(item, str) for item in cell)
        return " ".join(cell) if is_words else json.dumps(_rounded(list(cell)))
    return str(cell)


def _rounded(value: Any) -> Any:
    """Return nested lists of numbers with DIGITS digits, which a page can show."""
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if not isinstance(value, float):
        return value
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 10**DIGITS else short


def _file_of(name: str, cell: Any, prepare: Tokenizer) -> bytes | None:
    """Return the content of the file of a cell; None if it is too large or has no file format."""
    if isinstance(cell, bytes):
        return cell if len(cell) <= MAX_BYTES else None
    try:
        if isinstance(cell, OutsidePath):
            return None
        if prepare.reader.is_path(cell):
            path = Path(cell)
            if not path.is_file() or path.stat().st_size > MAX_BYTES:
                return None
            prepare.reader.read(cell)  # it must be a file of the kind that the model reads
            return path.read_bytes()
        # An array of built-in data. Its drawer may know how to write it as a file.
        plain = prepare.plain_values
        raw = prepare.reader.read(cell) if prepare.reader.files else None
        shown = Shown(plain.drawing, raw, plain, name=name)
        content = None if raw is None else get_drawer(shown.modality).file(shown)
        return _npy(cell) if content is None and ".npy" in prepare.reader.formats else content
    except (OSError, BadMedia, UserError):
        return None


def _npy(cell: Any) -> bytes:
    """Return an array as the content of a file."""
    file = io.BytesIO()
    np.save(file, np.asarray(cell))
    return file.getvalue()


def _print_start(url: str, options: ServeOptions, key: str | None) -> None:
    print_line(f"serving on {url} (Ctrl-C stops)")
    if key is not None:
        print_line(f"requests need the API key of {KEY_VARIABLE}")
    elif not options.is_local:
        print_line(
            f"note: every machine that reaches {options.host} can use the model; set "
            f"{KEY_VARIABLE} to a random text to require it as an API key"
        )
    if not options.is_local and not options.allowed_hosts:
        print_line(
            "note: requests to any host name are answered, so any web page could send "
            "some through the browser of a visitor; set allowed_hosts=[NAME] to the names of this "
            "server"
        )


def _require_libraries() -> None:
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise UserError(
            f"serve: packages not installed: {', '.join(missing)}; run pip install 'dxn[serve]'"
        )
