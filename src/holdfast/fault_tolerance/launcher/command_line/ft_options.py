"""The options that ``ft_launcher`` has beyond torchrun's: one table, from which parsing, help and docs are made.

Every option has all the names of its history. A name is written here without leading dashes and with
hyphens; on the command line each hyphen may be an underscore, and in the environment it is ``PET_`` and the name in
capitals. Options that are settings of `FaultToleranceConfig` are made from its fields, so none can be forgotten.
Options that other releases have as flags only, and that change nothing here, are made from `settings_history`.

Does not cover: torchrun's own options (`torch_options`), and merging (`config_sources`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ... import config_fields as grammar
from ...config import FIELDS, FaultToleranceConfig
from ...config_sources import variables_of
from ...settings_history import HISTORY, names_of
from ..ranks.exits import DO_NOT_REQUEUE

__all__ = ["OPTIONS", "FtOption", "by_name", "variables"]

LIMITS = "limits (when is a rank hung?)"
HEALTH = "health of nodes"
LAUNCHER = "restarts, signals and files of the launcher"
PAST = "accepted from other releases, without effect in this version"
GROUPS = {
    "use_infra_group_rank": LAUNCHER,
    "max_no_progress_cycles": LAUNCHER,
    "min_progress_iterations": LAUNCHER,
    "checkpoint_iteration_file": LAUNCHER,
    "install_exception_hook": LAUNCHER,
}
"""Of the settings that are no limits."""


@dataclass(frozen=True)
class FtOption:
    """One option. `key` is a field of the config if `is_setting`, else an attribute of `LauncherOptions`.

    An option in the group `PAST` is in the table `settings_history`; it may be neither of the two.
    """

    key: str
    names: tuple[str, ...]  # the name to show first
    parse: Callable[[object], object]
    default: object
    metavar: str
    meaning: str
    group: str
    takes_value: bool = True
    is_setting: bool = False
    more_variables: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name in help and errors, with its dashes; of a variable without flag, the variable."""
        return f"--{self.names[0]}" if self.names else self.variables[0]

    @property
    def is_boolean(self) -> bool:
        """Whether the value is true or false; the flag alone means true."""
        return self.parse is grammar.boolean

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set this option, the strongest first."""
        if self.is_setting:
            return variables_of(self.key)
        return (*(f"PET_{name.upper().replace('-', '_')}" for name in self.names), *self.more_variables)


def by_name() -> dict[str, FtOption]:
    """Every accepted name, hyphenated and without leading dashes → its option."""
    return {name: option for option in OPTIONS for name in option.names}


def variables() -> frozenset[str]:
    """Every environment variable that sets one of these options."""
    return frozenset(each for option in OPTIONS for each in option.variables)


def _settings() -> list[FtOption]:
    defaults = FaultToleranceConfig()
    found = []
    for name, each in FIELDS.items():
        about: Mapping[str, str] = each.metadata
        found.append(
            FtOption(
                key=name,
                names=_flags_of(name),
                parse=each.metadata["parse"],
                default=getattr(defaults, name),
                metavar=about["metavar"],
                meaning=about["help"],
                group=PAST if name in HISTORY else GROUPS.get(name, LIMITS),
                is_setting=True,
            )
        )
    return found


def _flags_only() -> list[FtOption]:
    return [
        FtOption(
            key=each.name,
            names=() if each.variable else _flags_of(each.name),
            parse=each.parse,
            default=each.default,
            metavar=each.metavar,
            meaning=each.meaning,
            group=PAST,
            more_variables=(each.variable,) if each.variable else (),
        )
        for each in HISTORY.values()
        if not each.is_key
    ]


def _flags_of(setting: str) -> tuple[str, ...]:
    return tuple(flag for name in names_of(setting) for flag in _names(name.replace("_", "-")))


def _names(base: str, *, first: str | None = None, older: tuple[str, ...] = ()) -> tuple[str, ...]:
    every = dict.fromkeys([first or f"ft-{base}", f"ft-{base}", f"ft-param-{base}", *older])
    return tuple(every)


def _file(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("give a path")
    return value


def _prefix(value: object) -> str:
    path = _file(value)
    if path.endswith("/"):
        raise ValueError("give the start of a file name, like /logs/job, not a folder")
    return path


def _warm_start(value: object) -> str:
    if value not in ("auto", "on", "off"):
        raise ValueError("give auto, on or off")
    return str(value)


def _modules(value: object) -> tuple[str, ...]:
    if grammar.is_nothing(value):
        return ()
    names = tuple(part.strip() for part in str(value).split(","))
    if not all(word.isidentifier() for name in names for word in name.split(".")):
        raise ValueError("give names of modules, like torch,numpy,my.model")
    return names


# fmt: off
_LAUNCHER = [
    FtOption("cfg_path", _names("cfg-path", older=("fault-tol-cfg-path",)), _file, None, "FILE",
             "YAML file with a 'fault_tolerance' section", LAUNCHER, more_variables=("FAULT_TOL_CFG_PATH",)),
    FtOption("ignore_missing_cfg", _names("ignore-missing-cfg", older=("ignore-missing-fault-tol-cfg",)),
             grammar.boolean, False, "", "no error when that file or its section is missing", LAUNCHER,
             takes_value=False),
    FtOption("restart_policy", _names("restart-policy", older=("restart-policy",)), grammar.restart_policy,
             "any-failed", "POLICY", "any-failed: a failure of one rank restarts all ranks", LAUNCHER),
    FtOption("restarts_reset_on_progress", _names("restarts-reset-on-progress"), grammar.boolean, False, "",
             "--max-restarts counts anew after progress", LAUNCHER, takes_value=False),
    FtOption("term_timeout", _names("term-timeout", first="term-timeout"), grammar.limit, 1800.0, "SECONDS",
             "time for ranks to save and leave after a preemption signal", LAUNCHER),
    FtOption("workers_stop_timeout", _names("workers-stop-timeout", first="workers-stop-timeout"),
             grammar.seconds, 5.0, "SECONDS", "SIGTERM to SIGKILL when ranks are stopped for a restart",
             LAUNCHER),
    FtOption("exit_timeout", _names("exit-timeout"), grammar.limit_or_zero, 10.0, "SECONDS",
             "time for a rank to end after an uncaught exception; None: no limit", LAUNCHER),
    FtOption("finished_timeout", _names("finished-timeout"), grammar.limit, None, "SECONDS",
             "time for a rank to end after its script has finished", LAUNCHER),
    FtOption("preempted_exit_code", _names("preempted-exit-code"), grammar.exit_code, 0, "CODE",
             "exit code of a preempted job in which no rank failed", LAUNCHER),
    FtOption("no_restart_exit_code", _names("no-restart-exit-code"), grammar.whole(1, 255), DO_NOT_REQUEUE, "CODE",
             "exit code of a job that --ft-max-no-progress-cycles ends", LAUNCHER),
    FtOption("run_dir", _names("run-dir"), _file, None, "DIR",
             "for journal and incidents; else one in the user's state folder", LAUNCHER),
    FtOption("per_cycle_applog_prefix", _names("per-cycle-applog-prefix"), _prefix, None, "PATH",
             "all output of all ranks, in PATH_cycle0.log and so on", LAUNCHER),
    FtOption("launcher_log", _names("launcher-log", older=("ft-nvrx-logfile", "ft-param-nvrx-logfile")), _file, None,
             "FILE", "for the launcher's own lines, with the time", LAUNCHER),
    FtOption("warm_start", _names("warm-start"), _warm_start, "auto", "auto|on|off",
             "start ranks from a process that has imported", LAUNCHER),
    FtOption("preload", _names("preload"), _modules, (), "MODULES",
             "like torch,numpy: import these ahead, too", LAUNCHER),
    FtOption("ignore_optimizer_steps", _names("ignore-optimizer-steps"), grammar.boolean, False, "",
             "do not count the steps of ranks that do not use the client", LAUNCHER, takes_value=False),
    FtOption("early_detection", _names("early-detection"), grammar.boolean, False, "",
             "accuse a rank that is plainly stopped before a limit is passed", LIMITS, takes_value=False),
    FtOption("node_timeout", _names("node-timeout"), grammar.seconds, 10.0, "SECONDS",
             "silence after which a node counts as gone", HEALTH),
]
# fmt: on

OPTIONS: tuple[FtOption, ...] = (*_settings(), *_LAUNCHER, *_flags_only())
"""Every option that torchrun does not have."""
