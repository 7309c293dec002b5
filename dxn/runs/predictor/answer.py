"""The answer of a model for one sample."""

from __future__ import annotations

from typing import Any

from dxn.viz.notebook import render

MAX_BARS = 10  # classes that a notebook shows


class Answer(dict[str, Any]):
    """A dict with the prediction, which a notebook shows as a table of probabilities."""

    def _repr_html_(self) -> str:
        probabilities: dict[str, float] = self.get("probabilities", {})
        ranked = sorted(probabilities.items(), key=lambda item: -item[1])
        return render(
            "answer",
            prediction=str(self.get("prediction", "")),
            bars=[{"name": name, "value": f"{p:.4f}"} for name, p in ranked[:MAX_BARS]],
            more=max(len(ranked) - MAX_BARS, 0),
        )
