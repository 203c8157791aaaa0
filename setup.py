"""Builds the two cores: that of GPU kernels (C++), and that of training steps (C).

Everything else about the package is in pyproject.toml. The kernel core (src/holdfast/straggler/kernels/native) is
loaded with ctypes and has no Python in it; the step core (src/holdfast/native) is an extension module of the limited
API, so one library serves every Python from 3.10 on. Each is built where there is a compiler (and, for the step core,
Python's headers), and otherwise the package installs without: GPU kernels are then not timed through CUPTI, which is
said once; what each step does is done in Python, which is the same and takes longer.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

CORE = "holdfast.straggler.kernels._cupti_core"
NATIVE = Path("src/holdfast/straggler/kernels/native")
STEP = "holdfast._step"
STEP_NATIVE = Path("src/holdfast/native")


class BuildCores(build_ext):
    """Builds each, or goes on without it."""

    def get_ext_filename(self, fullname: str) -> str:
        """Where it lies in the package."""
        # Neither has a Python version in its name.
        return str(Path(*fullname.split("."))) + (".abi3.so" if STEP.endswith(fullname) else ".so")

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """There is no function of Python's in the kernel core."""
        return [] if ext.name == CORE else super().get_export_symbols(ext)

    def build_extension(self, ext: Extension) -> None:
        """Build, or say why there is none."""
        try:
            super().build_extension(ext)
        except Exception as error:
            target = Path(self.get_ext_fullpath(ext.name))
            if not self.inplace:
                target.unlink(missing_ok=True)  # of an earlier build: a wheel has what its own build made
            if ext.name == CORE:
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
    """Any Python from 3.10 on, of a platform with a core; any platform without."""

    built: tuple[str, ...] = ()
    """The cores within; none in the wheel of an editable installation, which has a tag and no libraries."""

    def run(self) -> None:
        """Build first: only then is it known which of the cores there are."""
        self.run_command("build")
        build = self.get_finalized_command("build_ext")
        self.built = tuple(name for name in (CORE, STEP) if Path(build.get_ext_fullpath(name)).exists())
        self.root_is_pure = not self.built
        if self.root_is_pure:
            self.distribution.ext_modules = []
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """The step core needs a CPython with its stable ABI; the kernel core, loaded with ctypes, nothing of one."""
        if self.root_is_pure:
            return ("py3", "none", "any")
        python, abi = ("cp310", "abi3") if STEP in self.built else ("py3", "none")
        return (python, abi, super().get_tag()[2])


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
        Extension(
            STEP,
            sources=[str(STEP_NATIVE / "step_call.c")],
            depends=[str(STEP_NATIVE / "strokes.h")],
            define_macros=[("Py_LIMITED_API", "0x030A0000")],
            py_limited_api=True,
            extra_compile_args=["-O2", "-g0", "-fvisibility=hidden", "-Wall"],
            extra_link_args=["-s"],
        ),
    ],
    cmdclass={"build_ext": BuildCores, "bdist_wheel": Wheel},
)
