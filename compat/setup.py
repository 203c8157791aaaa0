"""Builds holdfast-nvrx. Its file holdfast_nvrx.pth goes beside the package: Python executes it at its start."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

PTH = "holdfast_nvrx.pth"


class BuildWithPth(build_py):
    def run(self) -> None:
        super().run()
        self.copy_file(str(Path("src", PTH)), str(Path(self.build_lib, PTH)))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), str(Path(self.build_lib, PTH))]


class NotEditable(editable_wheel):
    def run(self) -> None:
        raise SystemExit(
            f"holdfast-nvrx: error: an editable installation lacks {PTH}. Install it with: pip install ."
        )


setup(cmdclass={"build_py": BuildWithPth, "editable_wheel": NotEditable})
