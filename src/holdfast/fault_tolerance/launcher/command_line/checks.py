"""Checks of a command line before anything starts, beyond those of single values.

What always holds: after :func:`check` and :func:`check_script` nothing about the command line can fail any more that
could have been found from the command line, the environment and the files on this node, but for the folder of
``--log-dir``, which :func:`make_log_dir` makes when the job begins. A key of ``--rdzv-conf`` that has no effect is a
warning, as torch accepts any. A path for logs on a filesystem that does not answer within `ANSWER` is an error.

Of a module (``-m``) only the first part of its name is searched, as importing the rest would run the user's code in
the launcher; and only where the ranks' Python is this one.

Does not cover: a submodule that does not exist, a package without ``__main__``, scripts that exist on this node and
not on another, and whether an endpoint is reachable; its name may resolve later. A disk that fails later.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from types import SimpleNamespace

from holdfast.in_time import TooLate, within

from ...config_fields import did_you_mean, nearest
from ...errors import ConfigError
from ..rendezvous import parse_endpoint

Where = Callable[[str], str]
NO_ID = "none"  # torchrun's default for --rdzv-id
ANSWER = 10.0
"""Seconds."""

READ = frozenset({"join_timeout", "last_call_timeout", "is_host", "read_timeout", "store_type"})
"""The keys of ``--rdzv-conf`` that have an effect."""
KEEP_ALIVE = frozenset({"keep_alive_interval", "keep_alive_max_attempt", "heartbeat_timeout"})
UNUSED = frozenset({"close_timeout", "cas_backoff_max_seconds"})
"""With `KEEP_ALIVE` the keys that torch's own rendezvous handler reads, which is not used."""


def check(options: SimpleNamespace, where: Where, environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` for the first of torchrun's options that does not fit another.

    Replaces an empty id, and adds `least_nodes` and `most_nodes`, and `is_one_node`: there is no address at which
    other nodes, or a spare, could join, or the Slurm job has no other node. Only the launcher that chooses it knows
    the port that port 0 becomes.

    Args:
        where: The flag or the variable that set an option.
        environ: The launcher's environment.
    """
    nodes = [int(part) for part in options.nnodes.split(":")]
    options.least_nodes, options.most_nodes = nodes[0], nodes[-1]
    count = int(options.nproc_per_node)
    # Ranks that a filter names must exist: torch would show no output, without an error.
    shown = [int(part) for part in options.local_ranks_filter.split(",") if part]
    if shown and max(shown) >= count:
        has = f"{count} local ranks, 0 to {count - 1}" if count > 1 else "one local rank, 0"
        raise ConfigError(
            f"{where('local_ranks_filter')}: {options.local_ranks_filter!r} is not allowed: this node has {has}"
        )
    if not options.standalone:
        _check_rendezvous(options, where)
    elif options.least_nodes > 1:
        raise ConfigError(f"--standalone is for one node, and {where('nnodes')} is {options.nnodes}")
    endpoint = options.rdzv_endpoint.strip()
    is_reachable = bool(endpoint) and not options.standalone and parse_endpoint(endpoint).port > 0
    has_others = is_reachable and environ.get("SLURM_JOB_NUM_NODES") != "1"
    options.is_one_node = options.standalone or (options.most_nodes == 1 and not has_others)


def _check_rendezvous(options: SimpleNamespace, where: Where) -> None:
    """How several nodes are to meet. One node needs no id: an empty one is as none."""
    backend, most = options.rdzv_backend, options.most_nodes

    def refuse(key: str, reason: str) -> ConfigError:
        return ConfigError(f"{where(key)}: {getattr(options, key)!r} is not allowed: {reason}")

    if backend not in ("static", "c10d"):
        reason = "Holdfast restarts nodes together through a c10d store; use c10d"
        raise refuse("rdzv_backend", reason)
    if options.rdzv_endpoint.strip():
        try:
            parse_endpoint(options.rdzv_endpoint)
        except ValueError as problem:
            raise ConfigError(f"{where('rdzv_endpoint')}: {problem}") from None
    elif backend == "c10d" and options.least_nodes > 1:
        # torch would have each node wait for the others at a port of its own.
        raise refuse(
            "rdzv_endpoint",
            f"with --nnodes {options.nnodes} give every node the HOST:PORT of node 0; a variable that it was given by "
            "was probably empty",
        )
    if not options.rdzv_id.strip():
        if most > 1:
            raise refuse(
                "rdzv_id",
                "the variable that it was given by was probably empty; with --nnodes "
                f"{options.nnodes} give every node the same id",
            )
        options.rdzv_id = NO_ID
    if backend == "static" and not 0 <= options.node_rank < most:
        ranks = f"0 to {most - 1}" if most > 1 else "0"
        raise refuse("node_rank", f"with --nnodes {options.nnodes} give {ranks}")


def without_effect(keys: Iterable[str], source: str) -> list[str]:
    """A warning for each key in ``--rdzv-conf`` that has no effect: torchrun ignores a misspelt one silently."""
    found = []
    for key in keys:
        if key in KEEP_ALIVE:
            found.append(f"{source}: {key} has no effect: lost nodes are detected by --ft-node-timeout")
        elif key in UNUSED:
            found.append(f"{source}: {key} has no effect: torch's rendezvous handler is not used")
        elif key not in READ:
            hint = did_you_mean(key, sorted(READ), f"there are {', '.join(sorted(READ))}")
            found.append(f"{source}: {key} has no effect: there is no such key; {hint}")
    return found


# -- the training script ----------------------------------------------------------------------------------------


def check_folder() -> None:
    """Raises ConfigError if the current folder was removed: then every relative path is a FileNotFoundError."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the current folder is gone; go to another one") from None


def check_script(script: str | None, *, module: bool, no_python: bool, run_path: bool) -> None:
    """Raise `ConfigError` when `script` cannot be run; the switches are torchrun's."""
    if not script:
        raise ConfigError("no training script: ft_launcher [options] script.py [options of the script]")
    python = os.environ.get("PYTHON_EXEC")  # torch takes the ranks' Python from this variable
    if run_path:
        _check_file(script)
    elif no_python and module:
        raise ConfigError("--no-python and -m/--module exclude each other: a module is run by python")
    elif no_python:
        if not shutil.which(script):
            if os.path.isfile(script) and os.path.dirname(script):
                raise ConfigError(f"the program {script!r} is not executable: chmod +x {script}")
            raise ConfigError(
                f"there is no program {script!r} (searched as a shell would, because of --no-python)"
            )
    elif python is not None and not shutil.which(python):
        raise ConfigError(
            f"PYTHON_EXEC: there is no program {python!r} to run the ranks with; fix or unset it"
        )
    elif module:
        _check_module(script)
    else:
        _check_file(script)


def _check_file(script: str) -> None:
    if not os.path.exists(script):
        place = "" if os.path.isabs(script) else f" in {os.getcwd()}"
        folder, name = os.path.split(script)
        raise ConfigError(f"there is no training script {script!r}{place}{_similar(name, folder)}")
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise ConfigError(f"the training script {script!r} is a folder without a __main__.py")
    if not os.access(script, os.R_OK):
        raise ConfigError(f"the training script {script!r} cannot be read by this user")


def _check_module(module: str) -> None:
    flags = sys.flags
    if "PYTHON_EXEC" in os.environ or flags.ignore_environment or flags.no_site or flags.no_user_site:
        return  # the ranks' Python may have other paths
    name = module.partition(".")[0]
    sys.path.insert(0, "")  # as `python -m` has it
    try:
        here, found = os.getcwd(), find_spec(name)
    except Exception:  # an odd name, a finder of the user's own, a folder that was removed
        return
    finally:
        sys.path.remove("")
    if found is None:
        raise ConfigError(
            f"there is no module {name!r} to run with -m: neither in {here} nor on the paths of "
            f"{sys.executable}{_similar(name, suffix='.py')}"
        )


def _similar(name: str, folder: str = "", suffix: str = "") -> str:
    """``; did you mean …`` for the most similar name of a folder or of a file with this suffix, or nothing."""
    try:
        names = [each for each in os.listdir(folder or ".") if each.endswith(suffix) or os.path.isdir(each)]
    except OSError:
        return ""
    near = nearest(name, [each.removesuffix(suffix) for each in names])
    return f"; did you mean {os.path.join(folder, near)!r}?" if near else ""


# -- where logs are written -------------------------------------------------------------------------------------


def make_log_dir(path: str) -> None:
    """Make the folder of --log-dir where it is missing, and try to make a folder in it. Raises `ConfigError`.

    The null device is torch's word for no logs, and left as it is.
    """

    def make() -> None:
        os.makedirs(path, exist_ok=True)
        _make_a_folder_in(path)

    if path != os.devnull and (problem := _problem(make)):
        where = os.path.abspath(path)
        raise ConfigError(f"--log-dir: no logs can be kept in {where}: {problem}; give another folder")


def check_log_files(applog_prefix: str | None, log_file: str | None) -> None:
    """Try to make a file with this prefix, and to open the file. Raises `ConfigError`. Makes no folder."""
    if applog_prefix is not None:
        folder = os.path.dirname(os.path.abspath(applog_prefix))
        if problem := _problem(lambda: _make_a_folder_in(folder)):
            raise ConfigError(
                f"--ft-per-cycle-applog-prefix: no file can be made in {folder}: {problem}; make the folder or give "
                "another path"
            )
    if log_file is not None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        if problem := _problem(lambda: os.close(os.open(log_file, flags, 0o666))):
            path = os.path.abspath(log_file)
            raise ConfigError(f"--ft-launcher-log: {path} cannot be written to: {problem}; give another path")


def _problem(attempt: Callable[[], object]) -> str:
    try:
        within(ANSWER, attempt)
    except OSError as error:
        return error.strerror or str(error)
    except TooLate:
        return f"its filesystem has not answered for {ANSWER:g} s"
    return ""


def _make_a_folder_in(folder: str) -> None:
    # Nothing short of trying is sure: root may write everywhere, and yet not in /proc or on a read-only disk.
    os.rmdir(tempfile.mkdtemp(prefix=".holdfast-", dir=folder))
