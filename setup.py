"""Builds the core that times GPU kernels (C++); everything else about the package is in pyproject.toml.

The core (src/holdfast/straggler/kernels/native) is loaded with ctypes and has no Python in it, so one library serves
every Python. It is built where there is a compiler, and otherwise the package installs without: GPU kernels are then
not timed through CUPTI, which is said once.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

CORE = "holdfast.straggler.kernels._cupti_core"
NATIVE = Path("src/holdfast/straggler/kernels/native")


class BuildCore(build_ext):
    """Builds the core, or continues without it."""

    def get_ext_filename(self, fullname: str) -> str:
        """Where it lies in the package."""
        # It has no Python version in its name.
        return str(Path(*fullname.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """There is no function of Python's in the kernel core."""
        return []

    def build_extension(self, ext: Extension) -> None:
        """Build, or say why there is none."""
        try:
            super().build_extension(ext)
        except Exception as error:
            target = Path(self.get_ext_fullpath(ext.name))
            if not self.inplace:
                target.unlink(missing_ok=True)  # of an earlier build: a wheel has what its own build made
            print(
                "holdfast: warning: the kernel core was not built, because a C++ compiler is missing or failed "
                f"({str(error).splitlines()[0]}). Everything else works; GPU kernels are not timed through CUPTI.",
                file=sys.stderr,
            )

    def copy_extensions_to_source(self) -> None:
        """For editable installations, what the build made."""
        every = self.extensions
        self.extensions = [
            ext for ext in every if Path(self.build_lib, self.get_ext_filename(ext.name)).exists()
        ]
        super().copy_extensions_to_source()
        self.extensions = every


class Wheel(bdist_wheel):
    """For any Python; with the core for one platform, without it for all."""

    def run(self) -> None:
        """Build first: only then is it known whether there is a core."""
        self.run_command("build")
        build = self.get_finalized_command("build_ext")
        self.root_is_pure = not Path(build.get_ext_fullpath(CORE)).exists()
        if self.root_is_pure:
            self.distribution.ext_modules = []
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """The core is loaded with ctypes, so it needs no particular Python."""
        return ("py3", "none", "any" if self.root_is_pure else super().get_tag()[2])


setup(
    ext_modules=[
        Extension(
            CORE,
            sources=sorted(str(path) for path in NATIVE.glob("*.cpp")),
            depends=sorted(str(path) for path in (*NATIVE.glob("*.h"), NATIVE / "exports.map")),
            language="c++",
            extra_compile_args=["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra"],
            # Nothing of the machine that built it is needed but glibc.
            extra_link_args=[
                "-static-libstdc++",
                "-static-libgcc",
                "-ldl",
                "-s",
                f"-Wl,--version-script={NATIVE}/exports.map",
            ],
        ),
    ],
    cmdclass={"build_ext": BuildCore, "bdist_wheel": Wheel},
)
