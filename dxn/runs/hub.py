"""Models on the Hugging Face hub, which are named hf://OWNER/NAME or hf://OWNER/NAME@REVISION."""

from __future__ import annotations

import os
import re
from pathlib import Path
from textwrap import shorten
from typing import Any

from dxn.core.errors import UserError
from dxn.core.files import CARD, CONFIG, SUMS

HUB = "hf://"  # start of the name of a model on the hub
NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
REVISION = re.compile(r"[\w][\w./-]*")
# The files of a model folder. Nothing else is downloaded, such as pickles.
PATTERNS = ("*.json", "*.yaml", "*.safetensors", SUMS, CARD)
MAX_REASON = 300  # characters of an error of the library


def parse(text: str, key: str = "run") -> tuple[str, str | None]:
    """Return the repository and the revision of a text such as hf://OWNER/NAME@REVISION.

    The revision is a branch, a tag or a commit; None: the main branch.

    Raises:
        UserError: If the text is not written in this way.
    """
    repo, mark, revision = text.removeprefix(HUB).partition("@")
    is_valid = NAME.fullmatch(repo) and (not mark or REVISION.fullmatch(revision))
    if not is_valid or ".." in text:
        raise UserError(
            f"{key}: a model on the hub is written hf://OWNER/NAME or "
            f"hf://OWNER/NAME@REVISION, got {text[:200]}"
        )
    return repo, revision or None


def download(name: str, key: str = "run") -> Path:
    """Return the folder of a model on the hub, which is downloaded unless it is in the cache.

    Args:
        name: A text such as hf://OWNER/NAME@REVISION.
        key: The option, for messages.

    Raises:
        UserError: If the repository or the revision does not exist, or cannot be downloaded.
    """
    repo, revision = parse(name, key)
    # The library is slow to import, and most commands do not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    def fetch(commit: str | None, *patterns: str) -> Path:
        folder = snapshot_download(
            repo,
            revision=commit,
            allow_patterns=list(patterns),
            ignore_patterns=["*/*"],  # a * matches slashes too, but a model folder has no folders
            endpoint=endpoint(),
        )
        return Path(folder)

    try:
        # First, because the weights of another library can have many gigabytes.
        folder = fetch(revision, CONFIG)
        has_config = (folder / CONFIG).exists()
        if has_config:
            # The name of the folder is the commit, so that both come from the same one.
            folder = fetch(folder.name, *PATTERNS)
    except RevisionNotFoundError as error:
        raise UserError(
            f"{key}: {repo} has no revision {revision}; check the part after @"
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{key}: {repo}: not found on the hub; check the spelling, or log in with "
            "`hf auth login` if it is private"
        ) from error
    # The type of connection errors depends on the HTTP library.
    except Exception as error:
        raise UserError(f"{key}: {repo} cannot be downloaded: {reason_of(error)}") from error
    if not has_config:
        raise UserError(
            f"{key}: {repo} is not a model of dxn: it has no config.yaml; for other models, "
            f"use weights={repo}"
        )
    return folder


def endpoint() -> str | None:
    """Return the address of another hub, from the variable HF_ENDPOINT. None: the default."""
    # Read at each call, because the library reads it only when it is imported.
    return os.environ.get("HF_ENDPOINT") or None


def status_of(error: BaseException) -> int | None:
    """Return the status of the answer in an error of the hub library. None: there is no answer."""
    # The type of these errors depends on the HTTP library.
    response: Any = getattr(error, "response", None)
    return None if response is None else response.status_code


def reason_of(error: BaseException) -> str:
    """Return the message of an error of the hub library in one line."""
    code = status_of(error)
    status = "" if code is None else f"status {code}: "
    # The message of an error during an upload has no details; those are in its cause.
    parts = [str(cause) for cause in (error, error.__cause__) if cause is not None and str(cause)]
    # A cause can have the same message.
    text = " ".join(" ".join(dict.fromkeys(parts)).split()) or type(error).__name__
    # The HTTP library adds a link to an encyclopedia.
    text = text.partition(" For more information check: ")[0]
    return f"{status}{shorten(text, MAX_REASON)}"
