"""The command line: `dxn VERB key=value ...`, with the override grammar of Hydra."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import dxn
from dxn.errors import UserError
from dxn.runtime import configure

CONF = Path(__file__).parent / "conf"
HELP = ("-h", "--help")
SWEEP = ("-m", "--multirun")  # the flags of Hydra's own command line

VERBS = {
    "train": "Train a model on text, images, audio or any mix of them, and evaluate it",
    "evaluate": "Compute the metrics of a trained model, with all inputs and with subsets of them",
    "predict": "Predict for one sample or a table with a trained model",
    "generate": "Generate text with a trained model: continue a prompt, or describe an input",
    "embed": "Compute one embedding per sample with a trained model or a public checkpoint",
    "attend": "Draw the attention of a model for one sample",
    "neighbors": "List the tokens whose embeddings are most similar to that of one token",
    "tokenize": "Convert one sample to its D×N matrix and draw it",
    "check": "Read a whole data set and report its contents and errors",
    "show": "Print the composed configuration of a training",
}
EXAMPLES = {
    "train": (
        "dxn train",
        "dxn train data=table data.path=reviews.csv data.target=label",
        "dxn train data=folder data.path=photos/ adapters=[image] backbone=tiny",
        "dxn train -m seed=1,2,3",
        "dxn train weights=google/vit-base-patch16-224 data=folder data.path=photos/ "
        "adapters=[image]",
        "dxn train resume=outputs/label/2026-01-31_12-00-00.00",
        "dxn train conf_dir=my/conf adapters=[text,series] data=table data.path=sensors.csv",
    ),
    "evaluate": (
        "dxn evaluate run=RUN",
        "dxn evaluate run=RUN only=[image]",
        "dxn evaluate weights=google/vit-base-patch16-224 data=folder data.path=photos/",
    ),
    "predict": (
        "dxn predict run=RUN input=new.csv output=answers.csv",
        'dxn predict run=RUN input.text="a fine film"',
        "dxn predict run=RUN input.image=a.jpg input.audio=a.wav",
    ),
    "generate": (
        'dxn generate run=RUN prompt="ROMEO:" temperature=0.8',
        'dxn generate weights=openai-community/gpt2 prompt="Once upon a time" top_p=0.9',
        "dxn generate run=RUN input.image=photo.jpg temperature=0",
    ),
    "embed": (
        "dxn embed run=RUN input=new.csv output=vectors.npy",
        'dxn embed weights=google-bert/bert-base-uncased input.text="a fine film"',
    ),
    "attend": (
        'dxn attend run=RUN input.text="a fine film"',
        "dxn attend weights=models/vit input=photo.jpg",
    ),
    "neighbors": (
        "dxn neighbors run=RUN token=king",
        "dxn neighbors weights=google-bert/bert-base-uncased token=king",
    ),
    "tokenize": (
        "dxn tokenize adapters=[image] input=photo.jpg",
        'dxn tokenize input.text="hello there"',
    ),
    "check": ("dxn check data=table data.path=reviews.csv data.target=label",),
    "show": ("dxn show experiment=trec",),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0 for success, 1 if `check` found errors in the data, 2 for a problem that
        the user can fix, and 130 after Ctrl+C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    configure()
    try:
        return _run(arguments)
    except UserError as error:
        # For developers: DXN_DEBUG=1 shows where the error was raised.
        if os.environ.get("DXN_DEBUG"):
            raise
        print("\n".join(f"dxn: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("dxn: interrupted", file=sys.stderr)
        return 130  # 128 + SIGINT, as shells report it
    except BrokenPipeError:
        # The reader has closed the pipe (`dxn --help | head -1`). Without this the interpreter
        # would print a warning when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in (*HELP, "help"):
        verb = arguments[1] if len(arguments) > 1 else None
        print(_verb_help(verb) if verb in VERBS else _help())
        return 0
    if arguments[0] == "--version":
        print(f"dxn {dxn.__version__}")
        return 0
    verb, *rest = arguments
    if verb not in VERBS:
        raise UserError(_no_such_command(verb))
    if set(HELP) & set(rest):
        print(_verb_help(verb))
        return 0
    is_sweep = bool(set(SWEEP) & set(rest))
    overrides = [argument for argument in rest if argument not in SWEEP]
    if flags := [argument for argument in overrides if argument.startswith("-")]:
        raise UserError(
            f"{flags[0]}: no such flag; options are written key=value, dxn {verb} --help lists them"
        )
    if is_sweep and verb != "train":
        raise UserError(f"-m: only dxn train can run a sweep, got dxn {verb}; remove -m")
    # Imported here, because these modules import torch, which takes seconds: --help must be fast.
    config = importlib.import_module("dxn.config")
    if is_sweep:
        # All runs are composed before the first one starts: a wrong option fails immediately.
        sweep = [config.compose("train", each) for each in config.expand(overrides)]
        return importlib.import_module("dxn.run.verbs").sweep(sweep)
    settings = config.compose(verb, overrides)
    return getattr(importlib.import_module("dxn.run.verbs"), verb)(settings)


def _no_such_command(verb: str) -> str:
    close = difflib.get_close_matches(verb, VERBS, 1)
    hint = f"; did you mean {close[0]}?" if close else "."
    return f"'{verb}' is not a command{hint} Commands: {', '.join(VERBS)}"


def _help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  dxn {name:<{width}}  {purpose}" for name, purpose in VERBS.items())
    return (
        "dxn converts text, images and audio to D×N token matrices, and trains one transformer "
        f"on them.\n\n{verbs}\n\n"
        "dxn VERB --help lists the keys of a command. All options are written key=value. dxn show "
        "prints all of them."
    )


def _verb_help(verb: str) -> str:
    examples = [f"  {example}" for example in EXAMPLES[verb]]
    # Plain text instead of YAML, because the comments of the file are the descriptions of the keys.
    lines = (CONF / f"{verb}.yaml").read_text(encoding="utf-8").splitlines()
    sections = [f"dxn {verb}: {VERBS[verb]}.", "", *examples]
    if keys := top_keys(lines):
        sections += ["", "keys:", *(f"  {line}" for line in keys)]
    # `show` takes the groups of `train`, which it includes without naming them.
    names = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())
    used = [name for name in names if verb == "show" or f" {name}: " in "\n".join(lines)]
    if used:
        sections += ["", "groups:", *(f"  {name}={_options(name)}" for name in used)]
    return "\n".join(sections)


def _options(group: str) -> str:
    # Files such as head/_decoder.yaml are included by others, and cannot be chosen.
    names = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    return ", ".join(name for name in names if not name.startswith("_"))


def top_keys(lines: Sequence[str]) -> list[str]:
    """Return the keys of a command's YAML file with full names, such as weights.source.

    Args:
        lines: Lines of the file.

    Returns:
        Lines of the form "KEY: DEFAULT # DESCRIPTION".
    """
    keys: list[str] = []
    parent = ""
    for line in lines:
        if line.startswith("  ") and parent:
            keys.append(f"{parent}.{line.strip()}")
        elif line[:1].isalpha():
            is_parent = line.endswith(":")
            parent = line.removesuffix(":") if is_parent and line != "defaults:" else ""
            if not is_parent:
                keys.append(line)
    return keys
