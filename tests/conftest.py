"""Warnings are errors, and so is randomness that a test did not ask for."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as dxn.cli does, before torch is imported
os.environ.setdefault("MKL_CBWR", "AUTO")

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
