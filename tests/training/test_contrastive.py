"""Contrastive learning in several processes equals the training of one process."""

import socket

import torch
import torch.nn.functional as F
from torch import distributed as dist
from torch import multiprocessing

from dxn.models.losses import gather, softmax_loss, unit

SIZES = (3, 5)  # samples per process; the last batches of an epoch can differ
E = 7


def vectors():
    torch.manual_seed(0)
    return torch.randn(sum(SIZES), 2, E, dtype=torch.double)


def loss_of(x, others, at):
    """The mean loss of the samples x, compared with all others that are not zero."""
    present = others.abs().sum((1, 2)) > 0
    ignored = ~present.expand(len(x), -1)
    return softmax_loss(unit(x[:, 0]) @ F.normalize(others[:, 1], dim=-1).T, at, ignored).mean()


def worker(rank, port, folder):
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=len(SIZES))
    start = sum(SIZES[:rank])
    x = vectors()[start : start + SIZES[rank]].requires_grad_()
    keys = torch.arange(start + 1, start + SIZES[rank] + 1)[:, None].expand(-1, 2)
    (others, other_keys), first = gather((x, keys))
    assert first == rank * max(SIZES)
    assert other_keys.shape == others.shape[:2] == (len(SIZES) * max(SIZES), 2)
    assert torch.equal(other_keys[first : first + len(x)], keys)
    loss = loss_of(x, others, first + torch.arange(len(x)))
    (loss * SIZES[rank]).backward()
    torch.save(x.grad, folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_gathered_vectors_have_the_gradients_of_one_large_batch(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(worker, (port, tmp_path), nprocs=len(SIZES))
    x = vectors().requires_grad_()
    (loss_of(x, x, torch.arange(len(x))) * len(x)).backward()
    grads = torch.cat([torch.load(tmp_path / f"{rank}.pt") for rank in range(len(SIZES))])
    torch.testing.assert_close(grads, x.grad)


def test_one_process_gathers_nothing():
    x, keys = torch.ones(2, 2, E), torch.ones(2, 2)
    (others, other_keys), first = gather((x, keys))
    assert others is x and other_keys is keys and first == 0
