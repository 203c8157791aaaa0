"""Measuring callables where they are defined: methods, class and static methods, functions of a module.

What always holds: all callables are checked before any is replaced; each is wrapped once, however often it is asked
for, the last wish counts; `restore` puts back exactly what was there. A wrapped callable works forever, also if a
reference to it is used after `restore`.
Does not cover: generators, whose call is measured and whose body is not.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from holdfast.prefixed_log import Once

from .log_texts import reason
from .sections import LONGEST_NAME, SKIPPED, SectionContext, Sections

log = logging.getLogger("holdfast.straggler")
_MISSING = object()


@dataclass(frozen=True)
class CallableId:
    """A callable to measure: attribute `name` of `obj`, a class, an instance or a module.

    Its section is `module.name`, `module.Class.name`, or for an instance `Class.name`, which all wrapped instances of
    the class share. The two functions get the arguments of each call, by name, without those in `ignored_args`; they
    cost every call a few microseconds. If one raises, that is logged once and the call is measured as without it.

    Attributes:
        obj: where the callable is looked up.
        name: what it is called there.
        arg_filter_fn: only calls for which it returns something true are measured.
        extra_args_fn: a dict of what it returns is added to the section's name, as `Model.forward[phase=train]`.
        ignored_args: names of arguments that the functions are not given; `("self",)` for a method.
    """

    obj: Any
    name: str
    arg_filter_fn: Callable[[dict[str, Any]], object] | None = None
    extra_args_fn: Callable[[dict[str, Any]], Mapping[str, object]] | None = None
    ignored_args: Collection[str] | None = None

    def __str__(self) -> str:
        if isinstance(self.obj, ModuleType):
            return f"{self.obj.__name__}.{self.name}"
        if inspect.isclass(self.obj):
            return f"{self.obj.__module__}.{self.obj.__qualname__}.{self.name}"
        return f"{type(self.obj).__qualname__}.{self.name}"


@dataclass(frozen=True)
class _Original:
    """What there was: `own`, of the object itself, if anything; `found`, by inheritance too; and what is there now."""

    obj: Any
    name: str
    own: Any
    found: Any
    wrapper: Any


class Wrapped:
    """The callables that are wrapped now."""

    def __init__(self, sections: Sections) -> None:
        self._sections = sections
        self._originals: dict[tuple[int, str], _Original] = {}  # by identity and name

    def wrap(self, callable_ids: Sequence[CallableId], profile_cuda: bool) -> None:
        """Wrap all, or raise ValueError and wrap none."""
        found = [(one, self._original(one)) for one in check(callable_ids)]
        made: list[_Original] = []  # first all wrappers, which may be refused, then the replacements
        for one, (own, raw) in found:
            # Class and static methods stay what they are: called on a subclass, it still gets the subclass.
            function = raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw
            wrapper: Any = self._wrapper(one, function, profile_cuda)
            if function is not raw:
                wrapper = type(raw)(wrapper)
            elif inspect.isclass(one.obj) and not hasattr(type(raw), "__get__"):
                # A partial or a builtin does not get the instance, so it must not.
                wrapper = staticmethod(wrapper)
            made.append(_Original(one.obj, one.name, own, raw, wrapper))
        replaced: list[tuple[Any, str, Any]] = []
        for (one, _), each in zip(found, made, strict=True):
            before = _own(each.obj, each.name)
            try:
                setattr(each.obj, each.name, each.wrapper)
            except (AttributeError, TypeError) as error:
                for obj, name, former in reversed(replaced):
                    _put_back(obj, name, former)
                raise ValueError(f"wrap_callables: {one} cannot be replaced: {error}") from None
            replaced.append((each.obj, each.name, before))
        self._originals |= {(id(each.obj), each.name): each for each in made}

    def restore(self) -> None:
        """Put back what was there. What other code has replaced meanwhile stays."""
        while self._originals:
            _, was = self._originals.popitem()
            try:
                if _own(was.obj, was.name) is was.wrapper:
                    _put_back(was.obj, was.name, was.own)
            except Exception as error:  # it is the object's attribute; the others are still put back
                log.warning("%s is still wrapped, and works as before: %s", was.name, reason(error))

    def _original(self, one: CallableId) -> tuple[Any, Any]:
        """What the object itself has under the name, and what is found there by inheritance."""
        own = _own(one.obj, one.name)
        known = self._originals.get((id(one.obj), one.name))
        if known and known.wrapper is own:
            return known.own, known.found
        raw = own
        if raw is _MISSING and inspect.isclass(one.obj):
            raw = next((vars(base)[one.name] for base in one.obj.__mro__ if one.name in vars(base)), _MISSING)
        elif raw is _MISSING:
            raw = getattr(one.obj, one.name, _MISSING)
        if raw is _MISSING:
            raise ValueError(f"wrap_callables: {one} does not exist")
        if not callable(getattr(raw, "__func__", raw)):
            raise ValueError(f"wrap_callables: {one} is not callable but {type(raw).__name__}")
        return own, raw

    def _wrapper(
        self, one: CallableId, function: Callable[..., Any], profile_cuda: bool
    ) -> Callable[..., Any]:
        name, sections = str(one), self._sections
        sections.section(name, False)  # ValueError if it cannot be measured

        def always(args: Any, kwargs: Any) -> SectionContext:
            return sections.enter(name, profile_cuda)

        by_arguments = one.arg_filter_fn or one.extra_args_fn
        choose = _by_arguments(one, function, sections, profile_cuda) if by_arguments else always
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def measured_coroutine(*args: Any, **kwargs: Any) -> Any:
                with choose(args, kwargs):
                    return await function(*args, **kwargs)

            return measured_coroutine

        @functools.wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            with choose(args, kwargs):
                return function(*args, **kwargs)

        return measured


def check(callable_ids: object) -> list[CallableId]:
    """The callables; ValueError if one is none."""
    if isinstance(callable_ids, CallableId) or not isinstance(callable_ids, (list, tuple)):
        raise ValueError(f"wrap_callables: callable_ids must be a list of CallableId, not {callable_ids!r}")
    for one in callable_ids:
        if not isinstance(one, CallableId):
            raise ValueError(f"wrap_callables: callable_ids must hold CallableId, not {one!r}")
        for field in ("arg_filter_fn", "extra_args_fn"):
            if getattr(one, field) is not None and not callable(getattr(one, field)):
                raise ValueError(
                    f"wrap_callables: {one}: {field} must be callable, not {getattr(one, field)!r}"
                )
        if isinstance(one.ignored_args, str):
            raise ValueError(
                f"wrap_callables: {one}: ignored_args must be several names, as ({one.ignored_args!r},)"
            )
    return list(callable_ids)


def _own(obj: Any, name: str) -> Any:
    """What the object itself has, not what it inherits; unbound for a class."""
    return getattr(obj, "__dict__", {}).get(name, _MISSING)


def _put_back(obj: Any, name: str, own: Any) -> None:
    if own is _MISSING:
        delattr(obj, name)
    else:
        setattr(obj, name, own)


def _by_arguments(
    one: CallableId, function: Callable[..., Any], sections: Sections, profile_cuda: bool
) -> Callable[[Any, Any], SectionContext]:
    """The section of a call, chosen by its arguments."""
    signature = inspect.signature(function)
    ignored = frozenset(one.ignored_args or ())
    base = str(one)
    once = Once(log)

    def choose(args: Any, kwargs: Any) -> SectionContext:
        name = base
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # the call itself will raise it
            return SKIPPED
        try:
            bound.apply_defaults()
            given = {key: value for key, value in bound.arguments.items() if key not in ignored}
            if one.arg_filter_fn is not None and not one.arg_filter_fn(given):
                return SKIPPED
            extra = dict(one.extra_args_fn(given)) if one.extra_args_fn is not None else {}
            if extra:
                name += "[" + ", ".join(f"{key}={value}" for key, value in extra.items()) + "]"
                name = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
                sections.section(name, False)
        except Exception as error:
            name = base
            text = "%s is measured as a whole: its filter raised %r. Fix the CallableId"
            once(logging.WARNING, text, name, error)
        return sections.enter(name, profile_cuda)

    return choose
