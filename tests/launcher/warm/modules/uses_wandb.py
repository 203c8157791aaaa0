"""Imports wandb, which makes two temporary folders when it is imported and removes them at the process's end."""

import os
import time

import wandb
from wandb.sdk.data_types._private import MEDIA_TMP


def check() -> None:
    """The folder is there, is this rank's alone, and stays while the rank does."""
    own = os.path.join(MEDIA_TMP.name, "file")
    with open(own, "x"):
        pass
    time.sleep(0.05)
    assert os.listdir(MEDIA_TMP.name) == ["file"]
    run = wandb.init(mode="disabled")
    run.log({"loss": 1.0})
    run.finish()
