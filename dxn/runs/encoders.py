"""The table of published encoders, the choice of one for an input, and its download."""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

from dxn.core.display import print_line
from dxn.core.errors import UserError
from dxn.core.schema import Strict, validated
from dxn.core.untrusted import load_yaml
from dxn.runs.hub import endpoint, reason_of, status_of

TABLE = Path(__file__).parents[1] / "weights" / "encoders.yaml"
ENGLISH = "English"
# Words that are frequent in English, and words that are frequent in other languages with Latin
# letters and not in English.
OWN_WORDS = "the and of to is for with that this are was it not be have you in on"
OTHER_WORDS = (
    "der das und ist nicht ein eine mit von zu le les et est une pas du pour que el los las y por "
    "para con il che per di non della os uma com het een van niet och att som nie jest"
)
MIN_ASCII = 0.95  # of the letters of English texts
# Files that an encoder needs. Weights in other formats, which could contain code, are not loaded.
PATTERNS = ("*.json", "*.txt", "*.spm", "*.safetensors")
WEIGHTS = "model.safetensors"
SECONDS = 5.0  # until a hub that does not answer is given up
TRUE = ("1", "ON", "YES", "TRUE")  # values of a variable of huggingface_hub


class NoAnswer(UserError):
    """The hub does not answer, or must not be asked."""


class Encoder(Strict):
    """A published encoder.

    Args:
        source: Its repository on the hub.
        revision: The commit.
        license: Its licence.
        megabytes: Size of the download.
        languages: Languages of its texts. None: it reads no texts.
        sample_rate: Sample rate of its sounds in Hz. None: it reads no sounds.
        sounds: Kind of its sounds.
    """

    source: str
    revision: str
    license: str
    megabytes: int
    languages: str | None = None
    sample_rate: int | None = None
    sounds: str | None = None

    @property
    def name(self) -> str:
        """The repository and the commit, as the option `pretrained` names them."""
        return f"{self.source}@{self.revision}"

    def missing(self, folder: Path) -> str | None:
        """Return a file that a folder lacks, such as after an interrupted download; None: none."""
        # How it reads its inputs is in the last one.
        reading = "preprocessor_config.json" if self.languages is None else "tokenizer.json"
        names = (WEIGHTS, "config.json", reading)
        return next((name for name in names if not (folder / name).exists()), None)


class Table(Strict):
    """The encoders by modality and size."""

    encoders: dict[str, dict[str, list[Encoder]]]


@functools.cache
def table() -> Mapping[str, Mapping[str, list[Encoder]]]:
    """Return the encoders by modality and size."""
    return validated(Table, {"encoders": load_yaml(TABLE)}, TABLE).encoders


def license_of(name: str) -> str | None:
    """Return the licence of a checkpoint of the table, with or without @REVISION; None: unknown."""
    entries = [e for sizes in table().values() for size in sizes.values() for e in size]
    return next((e.license for e in entries if e.source == name.partition("@")[0]), None)


def choose_encoder(modality: str, size: str, texts: Iterable[Any]) -> Encoder:
    """Return the encoder of the table for an input.

    Args:
        modality: A modality of the table.
        size: small or base.
        texts: Texts of the input, if it consists of texts.
    """
    entries = table()[modality][size]
    if entries[0].languages == ENGLISH and not is_english(map(str, texts)):
        return entries[-1]
    return entries[0]


def is_english(texts: Iterable[str]) -> bool:
    """Whether texts are in English.

    They are if nearly all letters are ASCII, and if the frequent words of other languages are not
    more frequent than those of English.
    """
    text = " ".join(texts).lower()
    letters = [letter for letter in text if letter.isalpha()]
    if sum(letter.isascii() for letter in letters) < MIN_ASCII * len(letters):
        return False
    counts = Counter(re.findall(r"\w+", text))
    own, others = (sum(counts[w] for w in words.split()) for words in (OWN_WORDS, OTHER_WORDS))
    return own >= others


def cached(encoder: Encoder) -> Path | None:
    """Return the folder of an encoder in the local cache of the hub. None: it is not there."""
    # As huggingface_hub computes it, which takes half a second to import.
    get = os.environ.get
    home = get("HF_HOME", get("XDG_CACHE_HOME", "~/.cache") + "/huggingface")
    cache = get("HF_HUB_CACHE", get("HUGGINGFACE_HUB_CACHE", home + "/hub"))
    cache = Path(os.path.expandvars(cache)).expanduser()
    folder = cache / f"models--{encoder.source.replace('/', '--')}" / "snapshots" / encoder.revision
    return None if encoder.missing(folder) else folder


def fetch(encoder: Encoder, no_answer: NoAnswer | None = None) -> tuple[Path, bool]:
    """Return the folder of an encoder, and whether it was in the local cache.

    An encoder that is not is downloaded, unless the hub does not answer within SECONDS.

    Args:
        encoder: The encoder.
        no_answer: Error of an earlier encoder, after which the hub is not asked again.

    Raises:
        NoAnswer: If the hub does not answer. The message is the reason.
        UserError: If it cannot be downloaded for another reason, which is the message.
    """
    folder = cached(encoder)
    if folder is not None:
        return folder, True
    if no_answer is not None:
        raise no_answer
    name = "HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS_OFFLINE"
    if os.environ.get(name, "").upper() in TRUE:
        raise NoAnswer(f"{name} is set")
    from huggingface_hub import HfApi, snapshot_download  # slow to import

    options: dict[str, Any] = {
        "revision": encoder.revision,
        "allow_patterns": list(PATTERNS),
        "endpoint": endpoint(),
    }
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            api = HfApi(endpoint=endpoint())
            api.model_info(encoder.source, revision=encoder.revision, timeout=SECONDS)
        except Exception as error:
            errors.append(error)

    # The timeout of a request does not include the search for the address.
    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    if thread.is_alive():
        raise NoAnswer(f"the hub did not answer within {SECONDS:g} seconds")
    if errors:
        kind = NoAnswer if status_of(errors[0]) is None else UserError
        raise kind(reason_of(errors[0]))
    print_line(f"pretrained: downloading {encoder.source} ({encoder.megabytes} MB)")
    try:
        folder = Path(snapshot_download(encoder.source, etag_timeout=SECONDS, **options))
    except Exception as error:
        raise UserError(reason_of(error)) from error
    if name := encoder.missing(folder):
        raise UserError(f"it has no {name}")
    return folder, False
