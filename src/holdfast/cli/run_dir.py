"""The run directory that a command line of ours names, checked, with errors that name our own option.

Does not cover: what is checked; that is `journal.run_dir`, whose advice names the launcher's option.
"""

from __future__ import annotations

from ..fault_tolerance.errors import ConfigError


def prepared(chosen: str | None, name: str) -> str:
    """`prepare_run_dir` for `--run-dir`; warnings are told. Raises `ConfigError`."""
    from ..autoresume.log import say
    from ..journal.run_dir import RunDirError, prepare_run_dir

    try:
        return prepare_run_dir(
            chosen, name, lambda text: say(f"warning: {text.replace('--ft-run-dir', '--run-dir')}")
        )
    except RunDirError as error:
        raise ConfigError(
            f"{error.problem}. Give --run-dir a folder of your own; one that does not exist is made"
        ) from None
