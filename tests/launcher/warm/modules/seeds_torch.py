"""Seeds torch and numpy when it is imported."""

import numpy
import torch

torch.manual_seed(7)
numpy.random.seed(7)


def check() -> None:
    assert torch.initial_seed() == 7
    expected = torch.rand(1, generator=torch.Generator().manual_seed(7))
    assert float(torch.rand(1)) == float(expected)
    assert float(numpy.random.rand()) == float(numpy.random.RandomState(7).rand())
