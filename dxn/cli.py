"""The command line: `dxn VERB key=value ...`, with the override grammar of Hydra."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import dxn
from dxn.commands import VERBS, all_commands, command
from dxn.core.errors import Interrupted, UserError, similar
from dxn.core.printable import printable
from dxn.core.runtime import check_address_space, configure, is_out_of_memory

HELP = ("-h", "--help")
HEAVY = "dxn.runs.train"  # imports torch and all other large packages
# Messages of an import for which too little memory is left, of CPython if there is none for an
# exception, and of a thread whose stack does not fit.
OUT_OF_MEMORY = (
    "failed to map segment",
    "error return without exception set",
    "can't start new thread",
    "Cannot allocate memory",  # of an OSError: a process or a map of a file does not fit
)
SIGNALLED = 130  # exit code after Ctrl+C: 128 + SIGINT, as shells report it


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0 for success, 1 if `check` found errors in the data, 2 for a problem that
        the user can fix, and 128 plus the number of the signal after a signal (130: Ctrl+C).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    configure()
    if argv is None:
        # torch creates so many objects that searches for garbage take a fifth of its import, and
        # the last search, when Python ends, as much again.
        gc.disable()
        atexit.register(gc.freeze)
    try:
        return _run(arguments, is_typed=argv is None)
    except UserError as error:
        # For developers: DXN_DEBUG=1 shows where the error was raised.
        if os.environ.get("DXN_DEBUG"):
            raise
        return _failed(str(error), 2)
    except Interrupted as error:
        return _failed(str(error), error.code)
    except KeyboardInterrupt:
        return _failed("interrupted", SIGNALLED)
    except BrokenPipeError:
        # The reader has closed the pipe (`dxn --help | head -1`). Without this the interpreter
        # would print a warning when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MemoryError, RuntimeError, ImportError, SystemError, OSError) as error:
        if os.environ.get("DXN_DEBUG"):
            raise
        if any(text in str(error) for text in OUT_OF_MEMORY) or is_out_of_memory(error):
            code = _failed(
                "out of memory; close other programs, or use fewer rows, smaller files, a smaller "
                "model or a smaller batch_size",
                2,
            )
            if argv is None:
                # The functions that libraries have registered for the end of the process need
                # memory, too: they would print tracebacks, or crash.
                sys.stdout.flush()
                os._exit(code)
            return code
        # A file that cannot be written, for example. Other errors are defects of dxn.
        if not isinstance(error, OSError) or not _is_about_users_file(error):
            raise
        reason = f"{os.fsdecode(error.filename)}: {error.strerror}"
        return _failed(f"{reason}; with DXN_DEBUG=1, the command shows where it failed", 2)


def _is_about_users_file(error: OSError) -> bool:
    # A descriptor has no name. The user can do nothing about the files of dxn.
    if not isinstance(error.filename, str | bytes):
        return False
    package = Path(__file__).parent
    return package not in Path(os.fsdecode(error.filename)).absolute().parents


def _failed(message: str, code: int) -> int:
    lines = [f"dxn: {printable(line)}" for line in message.splitlines()]
    print("\n".join(lines), file=sys.stderr)
    return code


def _run(arguments: list[str], *, is_typed: bool) -> int:
    """Run one command.

    Args:
        arguments: Words of the command line.
        is_typed: Whether a user has typed them. A program may put its own options after others.
    """
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            # Such as the name of a file from an old system, whose bytes are not text.
            raise UserError(
                f"{argument}: must be valid UTF-8, which is the encoding of configurations and "
                "reports; rename the file, or correct the text"
            ) from None
    if not arguments or arguments in [[flag] for flag in (*HELP, "help")]:
        print(_topic_page([]))
        return 0
    if arguments[0] in (*HELP, "help"):
        print(_topic_page(arguments[1:]))
        return 0
    if arguments[0] == "--version":
        print(f"dxn {dxn.__version__}")
        return 0
    # What a shell asks for completion, with the line up to the cursor.
    if arguments[0] == "--complete":
        completion = importlib.import_module("dxn.config.completion")
        print("\n".join(completion.complete(" ".join(arguments[1:]), all_commands())))
        return 0
    if arguments[0] == "--completion":
        completion = importlib.import_module("dxn.config.completion")
        print(completion.script(arguments[1:]), end="")
        return 0
    verb, *rest = arguments
    if verb not in VERBS:
        close = similar(verb, VERBS)
        hint = f"; did you mean {close}?" if close else "."
        raise UserError(f"'{verb}' is not a command{hint} Commands: {', '.join(VERBS)}")
    if set(HELP) & set(rest):
        print(_topic_page(arguments))
        return 0
    if flags := [argument for argument in rest if argument.startswith("-")]:
        raise UserError(
            f"{flags[0]}: no such flag; options are written key=value, dxn {verb} --help lists them"
        )
    cls = command(verb)
    if is_typed:
        importlib.import_module("dxn.config.words").refuse_repeated(rest)
    if verb == "show":  # the files that it names need not exist
        return cls.compose(rest).execute()
    check_address_space(HEAVY)
    # Imported here, because Hydra takes a tenth of a second: --help must be fast.
    check_paths = importlib.import_module("dxn.commands.options").check_paths
    prepared = check_paths(cls.compose(rest))
    if is_typed:
        importlib.import_module("torch")  # which every command imports
        gc.freeze()  # later searches leave out what exists now
        gc.enable()
    for note in prepared.settings.notes:
        print(printable(note))
    return prepared.execute()


def _topic_page(words: Sequence[str]) -> str:
    # Imported here, because the pages read the files of the configuration.
    return importlib.import_module("dxn.config.help").topic_page(words, all_commands())
