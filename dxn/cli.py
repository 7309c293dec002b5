"""The command line: `dxn VERB key=value ...`, Hydra's grammar for every verb."""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import dxn
from dxn.errors import UserError

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of mallopt, malloc.h
VERBS = {
    "train": "train a model on text, images, audio or any mix of them, and evaluate it",
    "evaluate": "figures of a trained model, also with modalities withheld",
    "predict": "answers of a trained model for a table or one sample",
    "generate": "let a trained model write: go on with a text, or write of an input",
    "embed": "one vector a sample, of a trained model or a public checkpoint",
    "attend": "pictures of what a model looks at in one sample",
    "neighbors": "the subwords whose vectors lie closest to one's own",
    "tokenize": "turn one raw input into its D×N matrix and draw it",
    "check": "open all of a data set and say what is in it and what is wrong",
    "show": "print the composed configuration of a training",
}
EXAMPLES = {
    "train": (
        "dxn train",
        "dxn train data=table data.path=reviews.csv data.target=label",
        "dxn train data=folder data.path=photos/ adapters=[image] backbone=tiny",
        "dxn train -m seed=1,2,3",
        "dxn train weights=google/vit-base-patch16-224 data=folder data.path=photos/ adapters=[image]",
        "dxn train resume=outputs/label/2026-01-31_12-00-00.00",
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
    "attend": ('dxn attend run=RUN input.text="a fine film"', "dxn attend weights=models/vit input=photo.jpg"),
    "neighbors": ("dxn neighbors run=RUN token=king", "dxn neighbors weights=google-bert/bert-base-uncased token=king"),
    "tokenize": ("dxn tokenize adapters=[image] input=photo.jpg", 'dxn tokenize input.text="hello there"'),
    "check": ("dxn check data=table data.path=reviews.csv data.target=label",),
    "show": ("dxn show experiment=trec",),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. 0: done; 1: check found faults; 2: something the user can mend, said in plain words."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Both must be set before torch is imported. Threads that wait by spinning slow a shared machine down twentyfold;
    # and left to itself MKL gives a Fourier transform other last bits in another process.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("MKL_CBWR", "AUTO")
    try:
        return _run(arguments)
    except UserError as error:
        if os.environ.get("DXN_DEBUG"):
            raise
        print("\n".join(f"dxn: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("dxn: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader went away (`dxn --help | head -1`); keep the interpreter from saying so when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if arguments[0] == "--version":
        print(f"dxn {dxn.__version__}")
        return 0
    verb, *rest = arguments
    if verb not in VERBS:
        close = difflib.get_close_matches(verb, VERBS, 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise UserError(f"{verb}: no such verb{meant} verbs: {', '.join(VERBS)}")
    if {"-h", "--help"} & set(rest):
        print(_verb_help(verb))
        return 0
    many = {"-m", "--multirun"} & set(rest)
    overrides = [a for a in rest if a not in ("-m", "--multirun")]
    if flags := [a for a in overrides if a.startswith("-")]:
        raise UserError(f"{flags[0]}: no such flag; options are key=value, dxn {verb} --help lists them")
    if many and verb != "train":
        raise UserError(f"-m sweeps over trainings only, got dxn {verb}")
    _keep_memory()
    # Only now: torch takes seconds to import and --help must not wait for it.
    config = importlib.import_module("dxn.config")
    if many:
        configs = [config.compose("train", way) for way in config.expand(overrides)]
        return importlib.import_module("dxn.train.verbs").sweep(configs)
    composed = config.compose(verb, overrides)
    return getattr(importlib.import_module("dxn.train.verbs"), verb)(composed)


def _keep_memory() -> None:
    """Let the C library keep what is freed: given back and asked for anew, large blocks cost a tenth of each step."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # glibc's own
        library = ctypes.CDLL(None)
        library.mallopt(MMAP_THRESHOLD, 1 << 30)
        library.mallopt(TRIM_THRESHOLD, (1 << 31) - 1)


def _help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  dxn {name:<{width}}  {purpose}" for name, purpose in VERBS.items())
    return (
        "dxn turns text, images and audio into D×N token matrices and learns from them with one transformer.\n\n"
        f"{verbs}\n\ndxn VERB --help shows what a verb takes. All options are key=value; dxn show prints them all."
    )


def _verb_help(verb: str) -> str:
    conf = Path(__file__).parent / "conf"
    examples = "\n".join(f"  {example}" for example in EXAMPLES[verb])
    lines = [f"dxn {verb}: {VERBS[verb]}", "", examples, ""]
    top = (conf / f"{verb}.yaml").read_text().splitlines()
    lines += [
        "keys:",
        *(f"  {line}" for line in top_keys(top)),
    ]
    used = [folder for folder in sorted(conf.iterdir()) if folder.is_dir() and f"{folder.name}:" in "\n".join(top)]
    if verb == "show":
        used = [folder for folder in sorted(conf.iterdir()) if folder.is_dir()]
    if used:
        lines += ["", "groups:"]
    for folder in used:
        names = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
        lines.append(f"  {folder.name}={names}")
    return "\n".join(lines)


def top_keys(lines: Sequence[str]) -> list[str]:
    """The keys of a verb's file as they are written on a command line: weights.source, not source below weights."""
    found, parent = [], ""
    for line in lines:
        if line.startswith("  ") and parent:
            found.append(f"{parent}.{line.strip()}")
        elif line[:1].isalpha():
            parent = line.removesuffix(":") if line.endswith(":") and line != "defaults:" else ""
            if not line.endswith(":"):
                found.append(line)
    return found
