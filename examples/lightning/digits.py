"""A small classifier of handwritten digits in Lightning: the model and the data of the scripts beside this file.

The data are scikit-learn's 1,797 images of 8×8 pixels. The loader can be resumed in the middle of an epoch: Lightning
puts its `state_dict` into each checkpoint. With a loader that cannot, Lightning begins the epoch's data anew. A
checkpoint from the end of an epoch has no state for the loader; so the loader receives the number of the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Batches:
    """This rank's share of shuffled batches, the same in every run."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, size: int, rank: int, ranks: int) -> None:
        self.images, self.labels = images, labels
        self.size, self.rank, self.ranks = size, rank, ranks
        self.epoch, self.done = 0, 0
        self.sampler = self  # whose `set_epoch` Lightning calls when an epoch begins

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.done = epoch, 0

    def __len__(self) -> int:
        return len(self.labels) // (self.size * self.ranks)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(self.epoch))
        mine = order[self.rank :: self.ranks].split(self.size)
        for batch in mine[self.done : len(self)]:
            self.done += 1
            yield self.images[batch], self.labels[batch]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.done = state["epoch"], state["done"]


class Digits(pl.LightningDataModule):
    """The digits, one in five for validation."""

    def __init__(self, batch_size: int = 16) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.images, self.labels = self.load()

    def load(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Images of 64 values from 0 to 1, and which digit each is."""
        from sklearn.datasets import load_digits

        found = load_digits()
        return torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)

    def train_dataloader(self) -> Batches:
        assert self.trainer is not None
        chosen = torch.arange(len(self.labels)) % 5 != 0
        place = self.trainer.global_rank, self.trainer.world_size
        return Batches(self.images[chosen], self.labels[chosen], self.batch_size, *place)

    def val_dataloader(self) -> DataLoader[Any]:
        assert self.trainer is not None
        mine = torch.arange(0, len(self.labels), 5)[self.trainer.global_rank :: self.trainer.world_size]
        return DataLoader(
            TensorDataset(self.images[mine], self.labels[mine]), self.batch_size, drop_last=True
        )


class Classifier(pl.LightningModule):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        images, labels = batch
        return cross_entropy(self.layers(images), labels)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, labels = batch
        right = (self.layers(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)
