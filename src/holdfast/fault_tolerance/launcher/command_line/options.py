"""The command line of ``ft_launcher``: everything that torchrun takes, and the options of `ft_options`.

What always holds: options that came out of here are valid and complete, or nothing was started. torch is imported only
for values and options that need it. Nothing from the script on is parsed. (torchrun hands its whole line to argparse,
which tries to parse the script's arguments too: ``torchrun train.py --log x`` fails as an "ambiguous option".)

An option may be spelled with hyphens and underscores in any mixture and be shortened as long as it is unique.
Abbreviations are searched in torchrun's own options first, then in ours, then in those without effect, so that each
keeps its meaning.

Does not cover: the run directory (made and checked by `holdfast.journal`), and what torch does with its options.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import SimpleNamespace

from holdfast import __version__
from holdfast.lazy import require_torch

from ...config_fields import TORCH, Given, Option, is_boolean_word, nearest, parse_with, resolve, whole
from ...config_sources import load
from ...errors import ConfigError
from .checks import check, check_log_files, check_script, without_effect
from .ft_options import OPTIONS, LauncherOptions, reports
from .torch_options import (
    TABLE,
    installed_options,
    installed_torch,
    options_of_torch,
    print_completion,
    rdzv_settings,
    unknown_variables,
)

SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""torch's own variable for ``--shutdown-timeout``, in seconds."""
AFTER = "options of the training script belong after the script"


def first_after_script(words: Iterable[str]) -> str:
    """The first of the script's arguments that is, spelled in full, an option of ``ft_launcher``; "" without one."""
    known = Vocabulary().names
    flags = (word.partition("=")[0] for word in words if word.startswith("--"))
    return next((flag for flag in flags if flag[2:].replace("_", "-") in known), "")


def read(argv: Sequence[str], environ: Mapping[str, str]) -> LauncherOptions:
    """The options in `argv`, which is without the program's name, and in the ``PET_…`` variables of `environ`.

    Prints the text of ``--help`` or ``--version`` and leaves with 0. Raises `ConfigError` for anything wrong, and
    `UnsupportedTorch`.
    """
    if list(argv[:1]) == ["--version"]:
        print(f"ft_launcher {__version__} (holdfast), torch {installed_torch() or 'not installed'}")
        raise SystemExit(0)
    require_torch(installed_torch())
    line, known, warnings = _scan(argv, environ)
    if line.is_help:
        from .args_parser import help_text

        print(help_text(), end="")
        raise SystemExit(0)
    ours = [option for option in OPTIONS if not option.is_setting]
    values, origins = resolve(ours, line.ft, environ)
    launcher = {option.key: option.default for option in ours} | values
    resolved = load(
        line.ft,
        environ,
        launcher["cfg_path"],
        origins.get("cfg_path", "").partition("env ")[2],
        is_missing_ok=launcher["ignore_missing_cfg"],
    )
    given, torch_origins = _namespace(line, known, environ)

    def where(key: str) -> str:
        return torch_origins.get(key, f"--{key.replace('_', '-')}").removeprefix("env ")

    check(given, where, environ)
    segment = resolved.config.segment or 1
    if not given.is_one_node and (given.least_nodes < segment or given.least_nodes % segment):
        raise ConfigError(
            f"segment: {segment} does not divide the {given.least_nodes} nodes of {where('nnodes')}"
        )
    check_log_files(launcher["per_cycle_applog_prefix"], launcher["launcher_log"])
    warnings += without_effect(rdzv_settings(given.rdzv_conf), where("rdzv_conf"))
    if "event_log_handler" in torch_origins:
        warnings.append(
            f"{where('event_log_handler')} has no effect: the events of the job are in its journal"
        )
    if "workers_stop_timeout" not in origins:
        theirs = given.shutdown_timeout
        if theirs is None and (text := environ.get(SHUTDOWN_TIMEOUT, "").strip()):
            theirs = parse_with(whole(0), text, SHUTDOWN_TIMEOUT)
        if theirs is not None:
            launcher["workers_stop_timeout"] = float(theirs)
    about = reports({**vars(resolved.config), **launcher})
    return LauncherOptions(
        torch=given,
        resolved=resolved,
        warnings=(*resolved.warnings, *about, *warnings),
        **{each.name: launcher[each.name] for each in fields(LauncherOptions) if each.name in launcher},
    )


def _scan(
    argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[CommandLine, tuple[Option, ...], list[str]]:
    """The command line, torchrun's options, and a warning for each unknown variable.

    What our table lacks is searched in the installed torch's parser.
    """
    known = installed_options()
    warnings = unknown_variables(known, environ)
    try:
        line = scan(argv, Vocabulary(known))
        more = options_of_torch() if warnings else ()
    except UnknownOption:
        more = options_of_torch()
        if not more:
            raise
    if more:
        known += tuple(option for option in more if option.key not in {each.key for each in known})
        warnings = unknown_variables(known, environ)
        line = scan(argv, Vocabulary(known))
    return line, known, warnings


def _namespace(
    line: CommandLine, known: Sequence[Option], environ: Mapping[str, str]
) -> tuple[SimpleNamespace, dict[str, str]]:
    """torchrun's namespace with the script, and what set each option. Raises `ConfigError`."""
    values, origins = resolve(known, line.torch, environ)
    # An option that needs a newer torch has its default.
    given = SimpleNamespace(**{each.key: each.default for each in (*TABLE, *known)} | values)
    if given.print_completion:
        print_completion(given.print_completion)
    check_script(line.script, module=given.module, no_python=given.no_python, run_path=given.run_path)
    given.training_script, given.training_script_args = line.script, line.script_args
    given.has_node_rank = "node_rank" in origins or given.rdzv_backend == "static"
    return given, origins


# -- from words to options ---------------------------------------------------------------------------------------


class UnknownOption(ConfigError):
    """An option that the vocabulary does not have, or an abbreviation that is not unique."""


class Vocabulary:
    """Every option by its hyphenated names without dashes."""

    def __init__(self, torch: Iterable[Option] = TABLE) -> None:
        self.names = {name: option for option in (*torch, *OPTIONS) for name in option.names}
        self.letters = {option.letter: option for option in self.names.values() if option.letter}

    def find(self, body: str) -> Option:
        """The option that `body`, written after two dashes, means. Raises `UnknownOption`."""
        name = body.replace("_", "-")
        if name in self.names:
            return self.names[name]
        groups: list[dict[str, Option]] = [{}, {}, {}]
        for known, option in self.names.items():
            if name and known.startswith(name):
                group = 0 if option.group == TORCH else 2 if option.no_effect else 1
                groups[group][option.name] = option
        matches = next(filter(None, groups), {})
        if len(matches) == 1:
            return next(iter(matches.values()))
        if matches:
            raise UnknownOption(f"--{body} may be short for {', '.join(sorted(matches))}; write more of it")
        if any(name in option.names for option in TABLE):
            raise UnknownOption(f"--{body} needs a newer torch than the installed one")
        near = nearest(name, self.names)
        raise UnknownOption(f"unknown option --{body}; {f'did you mean --{near}?' if near else AFTER}")


@dataclass
class CommandLine:
    """A command line taken apart: torchrun's options and ours by key, each as it was given; a switch is ``1``."""

    torch: dict[str, Given] = field(default_factory=dict)
    ft: dict[str, Given] = field(default_factory=dict)
    script: str | None = None
    script_args: list[str] = field(default_factory=list)

    @property
    def is_help(self) -> bool:
        """Whether the text of ``--help`` was asked for."""
        return "help" in self.torch


def scan(argv: Sequence[str], vocabulary: Vocabulary) -> CommandLine:
    """Take `argv` (without the program's name) apart. An option given twice counts as given last.

    Raises:
        UnknownOption: `vocabulary` does not have an option.
        ConfigError: A value is missing.
    """
    line = CommandLine()
    tokens = deque(argv)
    while tokens and not line.is_help:
        token = tokens.popleft()
        if token == "--":
            break
        if len(token) < 2 or not token.startswith("-"):
            tokens.appendleft(token)
            break
        option, given = _option(token, tokens, vocabulary)
        (line.torch if option.group == TORCH else line.ft)[option.key] = given
    if tokens:
        line.script, *line.script_args = tokens
    return line


def _option(token: str, tokens: deque[str], vocabulary: Vocabulary) -> tuple[Option, Given]:
    value: str | None
    if token.startswith("--"):
        flag, equals, value = token.partition("=")
        option = vocabulary.find(flag[2:])
        value = value if equals else None
    else:
        flag, value = token[:2], token[2:].removeprefix("=") if len(token) > 2 else None
        if flag[1] not in vocabulary.letters:
            raise UnknownOption(f"unknown option {token}; {AFTER}")
        option = vocabulary.letters[flag[1]]
        if value is not None and not option.metavar:
            # Letters may be glued together, the last one with its value: -mr3 is -m -r 3.
            tokens.appendleft(f"-{value}")
            value = None
    # A flag of true or false takes the next word only where that is one of these.
    stands_alone = option.is_boolean and not (tokens and is_boolean_word(tokens[0]))
    if value is None and option.metavar and not stands_alone:
        if not tokens or _looks_like_an_option(tokens[0]):
            raise ConfigError(f"{flag} needs a value")
        value = tokens.popleft()
    return option, Given("1" if value is None else value, flag)


def _looks_like_an_option(token: str) -> bool:
    """As argparse has it: a dash makes an option, except alone, in a negative number, or in words with spaces."""
    if not token.startswith("-") or token == "-" or " " in token:
        return False
    try:
        float(token)
    except ValueError:
        return True
    return False
