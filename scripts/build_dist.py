"""`make dist`: build the distributions, install them in an empty environment, and run them there.

    python scripts/build_dist.py [FOLDER]        FOLDER: dist, which is emptied first

Builds the source distribution of holdfast, its wheel from that source distribution, and the wheel of holdfast-nvrx.
Exits non-zero if a wheel contains tests or a build fails, or if a command fails in the environment. That environment
is created anew, without torch. Does not upload, and does not check other Python versions.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path) -> str:
    """Run outside of the repository and return its output; on failure print it and exit."""
    done = subprocess.run(
        command, cwd=tempfile.gettempdir(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        sys.exit(f"build_dist: exit code {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout


def build(source: Path, folder: Path, *kinds: str) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, *kinds, source)


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as place:
        # setuptools leaves build folders in its sources, and files of an earlier build would enter the wheel.
        skip = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "*.so")
        copy = Path(place, "source")
        for name in ("src", "compat"):
            shutil.copytree(ROOT / name, copy / name, ignore=skip)
        for name in ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"):
            shutil.copy(ROOT / name, copy)
        build(copy, folder)  # both kinds: the wheel is built from the source distribution
        build(copy / "compat", folder, "--wheel")

        built = sorted(folder.iterdir())
        wheels = [path for path in built if path.suffix == ".whl"]
        (archive,) = folder.glob("holdfast-*.tar.gz")
        with tarfile.open(archive) as sources:
            names = sources.getnames()
        for wheel in wheels:
            names += zipfile.ZipFile(wheel).namelist()
        if tests := [name for name in names if "tests" in Path(name).parts or "/test_" in f"/{name}"]:
            sys.exit(f"build_dist: the distributions contain tests: {', '.join(tests[:5])}")

        environment = Path(place, "environment")
        venv.create(environment, with_pip=True)
        run(environment / "bin" / "python", "-m", "pip", "install", "--quiet", *wheels)
        version = run(environment / "bin" / "holdfast", "--version").strip()
        usage = run(environment / "bin" / "ft_launcher", "--help")
        run(environment / "bin" / "python", "-c", "import holdfast, nvidia_resiliency_ext.fault_tolerance")
        if not version.endswith(archive.name.removesuffix(".tar.gz").removeprefix("holdfast-")):
            sys.exit(
                f"build_dist: `holdfast --version` prints {version!r}, and the archive is {archive.name}"
            )
        if "--nproc-per-node" not in usage:
            sys.exit(f"build_dist: unexpected `ft_launcher --help`:\n{usage}")
    for path in built:
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {path.name}")
    print(
        f"Installed in an empty environment: `holdfast --version` prints {version}; `ft_launcher --help` works."
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT / "dist")
