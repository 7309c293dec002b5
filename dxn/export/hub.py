"""Publication of a model: its files and its card become a commit of a repository on the hub."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dxn.config.model_plan import SUFFIXES, ModelPlan, check_files, read_model_plan
from dxn.config.settings import dump_yaml
from dxn.core.display import significant
from dxn.core.errors import UserError
from dxn.core.files import CARD, LABELS, SUMS
from dxn.core.results import ALL, read_results
from dxn.core.untrusted import load_json, read_text
from dxn.runs.folder import model_folder
from dxn.runs.hub import NAME, REVISION, endpoint, reason_of, status_of

# The section about use, up to the next section, which an author may have added.
OLD_USE = re.compile(r"^## Use\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
# A license is an identifier such as apache-2.0.
LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")
LIMITATIONS = """## Limitations

The metrics above hold for data like that of the training and the test split. The model can be wrong
for other languages, sources, devices or times. Its probabilities are those of a model, not of the
world: check them on your own data before a decision depends on them.
"""
# With the call of the original card.
USE = """## Use

```python
import dxn

model = dxn.load("hf://{repo}")  # or "hf://{repo}@COMMIT" for a fixed version
{call}
```
"""


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
    sum_of_card = f"{hashlib.sha256(text).hexdigest()}  {CARD}"
    lines = [sum_of_card if line.endswith(f"  {CARD}") else line for line in sums]
    return {
        **{path.name: path for path in paths},
        CARD: text,
        SUMS: ("\n".join(lines) + "\n").encode(),
    }


def hub_card(
    run: Path, folder: Path, repo: str, license: str | None, *, trust: Sequence[str] = ()
) -> str:
    """Return the README.md of a repository.

    Args:
        run: Run folder, whose metrics.json has the metrics. It can be the model folder itself.
        folder: The model folder.
        repo: Repository OWNER/NAME.
        license: Identifier of a license. None: the card says that there is none.
        trust: Top-level packages besides dxn whose code config.yaml may use.

    Raises:
        UserError: If the license is not an identifier, or a file cannot be read.
    """
    if license is not None and LICENSE.fullmatch(license) is None:
        raise UserError(f"license: must be an identifier such as apache-2.0, got {license}")
    plan = read_model_plan(folder, trust=trust)
    task = str(load_json(folder / LABELS).get("task", "unknown"))
    results = read_results(run)
    # With all inputs.
    figures = {} if results is None else results.figures("test").get(ALL, {})
    text = dump_yaml(metadata(plan, task, figures, repo, license))
    body = _without_home(read_text(folder / CARD))
    if license is not None:
        body = body.replace("- license: not set", f"- license: {license}")
    call = re.search(r"^model\.(\w+)\((.*)\)$", body, re.MULTILINE)
    use = USE.format(repo=repo, call=call[0] if call else "model.predict(...)")
    return f"---\n{text}---\n\n{OLD_USE.sub('', body).rstrip()}\n\n{LIMITATIONS}\n{use}"


def _without_home(text: str) -> str:
    """Replace the home folder of the author by ~: it is nobody else's concern."""
    home = Path.home()
    # In a container, it can be /, which is part of every path.
    if len(home.parts) < 2:
        return text
    return re.sub(rf"(?<![\w.-]){re.escape(str(home))}(?![\w-])", "~", text)


def metadata(
    plan: ModelPlan,
    task: str,
    figures: Mapping[str, float],
    repo: str,
    license: str | None,
) -> dict[str, Any]:
    """Return the metadata of a card in the format of the hub."""
    modalities = sorted({spec.modality for spec in plan.inputs.values()})
    metrics = [
        {"type": name, "value": significant(value), "name": f"{name} on the test split"}
        for name, value in figures.items()
        if math.isfinite(value)
    ]
    data = {"name": "test split", "type": "custom"}
    results = [{"task": {"type": "other", "name": task}, "dataset": data, "metrics": metrics}]
    return {
        "library_name": "dxn",
        **({"license": license} if license is not None else {}),
        "tags": ["dxn", task, *modalities],
        # The hub accepts results only with metrics.
        **({"model-index": [{"name": repo, "results": results}]} if metrics else {}),
    }
