"""Warnings are errors, and so is randomness that a test did not ask for."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    torch.set_num_threads(2)
