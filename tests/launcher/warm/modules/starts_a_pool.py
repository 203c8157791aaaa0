"""Computes with several threads when it is imported: OpenMP's pool is there from then on."""

import torch

torch.ones(2_000_000).add_(1)
threads = torch.get_num_threads()


def check() -> None:
    assert torch.get_num_threads() == threads == 2
    assert float(torch.ones(2_000_000).add_(1).sum()) == 4_000_000
