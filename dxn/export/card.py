"""The model card of a repository on the hub: metadata in YAML, and the card of the model folder."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dxn.config.model_plan import ModelPlan, read_model_plan
from dxn.config.settings import dump_yaml
from dxn.core.display import significant
from dxn.core.errors import UserError
from dxn.core.files import CARD, LABELS
from dxn.core.results import ALL, read_results
from dxn.core.untrusted import load_json, read_text

# The section about use, up to the next section, which an author may have added.
USE = re.compile(r"^## Use\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
# A license is an identifier such as apache-2.0.
LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")

LIMITATIONS = """## Limitations

The metrics above hold for data like that of the training and the test split. The model can be wrong
for other languages, sources, devices or times. Its probabilities are those of a model, not of the
world: check them on your own data before a decision depends on them.
"""


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
    body = read_text(folder / CARD)
    body = _without_home(body)
    if license is not None:
        body = body.replace("- license: not set", f"- license: {license}")
    use = _use(repo, body)
    return f"---\n{text}---\n\n{USE.sub('', body).rstrip()}\n\n{LIMITATIONS}\n{use}"


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
    modalities = sorted({each.modality for each in plan.inputs.values()})
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


def _use(repo: str, body: str) -> str:
    """Return the section about using the model, with the call of the original card."""
    call = re.search(r"^model\.(\w+)\((.*)\)$", body, re.MULTILINE)
    line = call[0] if call else "model.predict(...)"
    return f"""## Use

```python
import dxn

model = dxn.load("hf://{repo}")  # or "hf://{repo}@COMMIT" for a fixed version
{line}
```
"""
