"""Vectors of all processes for contrastive learning; test_processes.py gathers those of two."""

import torch

from dxn.models.losses import gather


def test_one_process_gathers_nothing():
    x, keys = torch.ones(2, 2, 7), torch.ones(2, 2)
    (others, other_keys), first = gather((x, keys))
    assert others is x and other_keys is keys and first == 0
