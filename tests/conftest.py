"""Process settings and seeds of all tests."""

from dxn.runtime import configure

configure()  # before torch is imported

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Randomness that a test does not ask for would make it fail only sometimes."""
    torch.manual_seed(0)
