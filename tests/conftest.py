"""Process settings and seeds of all tests."""

from dxn.runtime import configure

configure()  # before torch is imported

from typing import Any  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved in a test, as objects."""
    from matplotlib.figure import Figure

    figures: list[Any] = []
    savefig = Figure.savefig

    def keep(figure: Any, *args: Any, **kwargs: Any) -> None:
        figures.append(figure)
        savefig(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Randomness that a test does not ask for would make it fail only sometimes."""
    torch.manual_seed(0)
