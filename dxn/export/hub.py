"""Publication of a model: its files and its card become a commit of a repository on the hub."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dxn.config.model_plan import SUFFIXES, check_files
from dxn.core.errors import UserError
from dxn.core.files import CARD, SUMS
from dxn.export.card import hub_card
from dxn.runs.folder import model_folder
from dxn.runs.hub import NAME, REVISION, endpoint, reason_of, status_of


def publish(
    run: Path,
    repo: str,
    *,
    revision: str | None = None,
    private: bool = True,
    license: str | None = None,
    message: str = "Upload a dxn model",
    trust: Sequence[str] = (),
) -> list[str]:
    """Upload the model folder of a run.

    Args:
        run: Run folder or model folder.
        repo: Repository OWNER/NAME.
        revision: Branch. None: main.
        private: Whether a new repository is private.
        license: License of the model, for the card.
        message: Message of the commit.
        trust: Top-level packages besides dxn whose code the run folder may use.

    Returns:
        Lines about the commit.

    Raises:
        UserError: If a name is not valid, a file is missing or damaged, nobody is logged in, or the
            hub refuses it.
    """
    if NAME.fullmatch(repo) is None:
        raise UserError(f"repo: must be OWNER/NAME, got {repo}")
    if revision is not None and REVISION.fullmatch(revision) is None:
        raise UserError(f"revision: must be the name of a branch, got {revision}")
    folder = model_folder(run)
    # A damaged file must not be published.
    check_files(folder)
    card = hub_card(run, folder, repo, license, trust=trust)
    files = _files(folder, card)
    # The library is slow to import.
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import LocalTokenNotFoundError

    api = HfApi(endpoint=endpoint())
    operations = [CommitOperationAdd(name, content) for name, content in files.items()]
    try:
        is_private = _is_private(api, repo, private)
        api.create_repo(repo, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repo, branch=revision, exist_ok=True)
        commit: Any = api.create_commit(
            repo,
            operations,
            commit_message=message,
            revision=revision,
        )
    except LocalTokenNotFoundError as error:
        raise UserError(
            "push: no access token; run `hf auth login`, or set the variable HF_TOKEN"
        ) from error
    except UserError:
        raise
    except Exception as error:
        advice = ""
        if status_of(error) in (401, 403):
            advice = "; run `hf auth login` with a token that may write to this repository"
        raise UserError(f"push: {repo}: {reason_of(error)}{advice}") from error
    size = sum(path.stat().st_size for path in files.values() if isinstance(path, Path))
    return [
        f"written: {commit.commit_url} ({len(files)} files, {size / 1e6:.1f} MB)",
        f"visibility: {'private' if is_private else 'public'}",
        f'load it with dxn.load("hf://{repo}@{commit.oid}")',
    ]


def _is_private(api: Any, repo: str, private: bool) -> bool:
    """Return whether the repository is private, or will be if it does not exist.

    Raises:
        UserError: If it is public, but must be private.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        is_private = api.repo_info(repo).private
    except RepositoryNotFoundError:
        return private
    # The hub ignores `private` for a repository that exists.
    if private and is_private is False:
        raise UserError(
            f"push: {repo} exists and is public; set private=false to publish the "
            "model, or choose another repository"
        )
    return private if is_private is None else is_private


def _files(folder: Path, card: str) -> dict[str, Path | bytes]:
    """Return the files to upload by name: those that dxn reads, the card and the checksums."""
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES]
    text = card.encode()
    sums = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    own = f"{hashlib.sha256(text).hexdigest()}  {CARD}"
    lines = [own if line.endswith(f"  {CARD}") else line for line in sums]
    return {
        **{path.name: path for path in paths},
        CARD: text,
        SUMS: ("\n".join(lines) + "\n").encode(),
    }
