"""Makes a temporary folder when it is imported, and removes it at its end, as wandb does."""

import atexit
import os
import tempfile
import time

folder = tempfile.TemporaryDirectory("of-a-module")
atexit.register(folder.cleanup)


def check() -> None:
    """The other rank looks at its own folder, too: neither finds foreign files, or a folder that is gone."""
    own = os.path.join(folder.name, "file")
    with open(own, "x"):
        pass
    time.sleep(0.05)
    assert os.listdir(folder.name) == ["file"]
