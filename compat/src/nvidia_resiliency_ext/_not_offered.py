"""What an import says of a module of the original that Holdfast does not have.

What always holds: whoever imports one gets a ModuleNotFoundError that says what to use; whoever only asks, with
`importlib.util.find_spec`, is told what Python says of any module that is not there. Names of other packages, and
modules that anybody else can find, are none of ours.
"""

from __future__ import annotations

import _frozen_importlib
import sys
from collections.abc import Sequence
from types import ModuleType

PACKAGE = "nvidia_resiliency_ext."

INSTEAD = {
    "inprocess": (
        "restarts within the process",
        "start the training with ft_launcher, which restarts its ranks within the job",
    ),
    "checkpointing": (
        "local and asynchronous checkpointing",
        "torch.distributed.checkpoint (save, async_save), and holdfast.checkpoints to find the last complete "
        "checkpoint",
    ),
    "ptl_resiliency.local_checkpoint_callback": (
        "local checkpoints",
        "Lightning's ModelCheckpoint, on a disk that outlives the node",
    ),
}
"""Name below the package -> what that is, what to use instead."""

OTHERS = ("this name", "what its page on drop-in use lists (docs/drop-in.md); the installation is not broken")


class NotOffered:
    """The last in `sys.meta_path`: asked for what nobody has found."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Raises ModuleNotFoundError for a module of ours that is being imported.

        The error has no `name`: of a module that is named, `from package import module` would hide the text.
        """
        if not name.startswith(PACKAGE) or name.endswith("__") or not _imported():
            return
        what, instead = INSTEAD.get(name.removeprefix(PACKAGE), OTHERS)
        raise ModuleNotFoundError(
            f"{name}: Holdfast, which is installed as nvidia_resiliency_ext, does not offer {what}. Instead: {instead}"
        )


def _imported() -> bool:
    # The finder's caller is importlib's search, and the search's caller an import: Python tells it in no other way.
    search = sys._getframe(2)
    importing = vars(_frozen_importlib)
    return (
        search.f_globals is importing and search.f_back is not None and search.f_back.f_globals is importing
    )


def explain_missing_modules() -> None:
    """Once in this process."""
    if NotOffered not in sys.meta_path:
        sys.meta_path.append(NotOffered)
