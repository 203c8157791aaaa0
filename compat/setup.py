"""Builds holdfast-nvrx: modules, and the metadata of a second name.

Programs ask `importlib.metadata` for the distribution nvidia-resiliency-ext. A wheel describes one distribution, so the
description of the second name travels as files to be put beside the modules: a folder with no RECORD, and with
INSTALLER saying who put it there. By the rules for installed distributions no tool removes or replaces such a one;
pip refuses to put the original over it, and names holdfast-nvrx.

What always holds: in an environment that has the original, nothing is built, and so pip installs nothing from here.
Does not cover: a wheel that was built elsewhere, as uv builds every one. Then the import says it.
"""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

SOURCE = Path("src")
SECOND_NAME = "nvidia_resiliency_ext-*.dist-info"
ORIGINAL = "nvidia[-_.]resiliency[-_.]ext-*.*-info"


def originals() -> list[Path]:
    """The metadata of nvidia-resiliency-ext that is installed here and is not ours."""
    # Not importlib.metadata: an isolated build does not see what is installed.
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    found = [folder for place in sorted(places) for folder in sorted(Path(place).glob(ORIGINAL))]
    return [folder for folder in found if not _ours(folder)]


def _ours(folder: Path) -> bool:
    installer = folder / "INSTALLER"
    return installer.is_file() and installer.read_text().strip() == "holdfast-nvrx"


class Wheel(bdist_wheel):
    """The wheel with the second name's metadata."""

    def run(self) -> None:
        """Refuses beside the original."""
        if found := originals():
            raise SystemExit(
                f"holdfast-nvrx: error: nvidia-resiliency-ext is installed here ({found[0]}), and the two cannot be "
                "mixed. Nothing was installed. First: pip uninstall nvidia-resiliency-ext"
            )
        super().run()

    def write_wheelfile(self, wheelfile_base: str, *args: Any, **kwargs: Any) -> None:
        """Called once, when all that goes into the wheel is in one folder."""
        super().write_wheelfile(wheelfile_base, *args, **kwargs)
        (folder,) = SOURCE.glob(SECOND_NAME)
        beside_modules = Path(wheelfile_base).with_suffix(".data") / "purelib"
        shutil.copytree(folder, beside_modules / folder.name)


setup(cmdclass={"bdist_wheel": Wheel})
