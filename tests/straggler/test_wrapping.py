"""Wrapping callables and putting back what was there."""

from __future__ import annotations

import asyncio
import functools
import logging
import types
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.straggler import CallableId, Detector, Statistic

PREFIX = f"{__name__}.Model"


class Base:
    def inherited(self) -> str:
        return "inherited"


class Model(Base):
    calls = 0

    def forward(self, data: int, phase: str = "train") -> int:
        return data + 1

    @classmethod
    def make(cls) -> type:
        return cls

    @staticmethod
    def double(value: int) -> int:
        return 2 * value

    async def fetch(self) -> str:
        return "fetched"

    cast = functools.partial(int, base=2)
    largest = max

    def fail(self) -> None:
        raise KeyError("x")


class Sub(Model):
    pass


@pytest.fixture(autouse=True)
def _initialized() -> None:
    Detector.initialize(scores_to_compute="individual_perf_scores", gather_on_rank0=False)


def counts() -> dict[str, float]:
    report = Detector.generate_report()
    assert report is not None
    return {name: one[Statistic.NUM] for name, one in report.local_section_summaries.items()}


def test_methods_of_every_kind_are_measured_and_restored() -> None:
    before = dict(vars(Model))
    names = ("forward", "make", "double", "inherited", "fail")
    Detector.wrap_callables([CallableId(Model, name) for name in names])
    assert Model().forward(1, phase="eval") == 2
    assert Sub.make() is Sub and Model.make() is Model and Sub().make() is Sub
    assert Model.double(4) == Model().double(4) == 8
    assert Model().inherited() == Base().inherited() == "inherited"
    with pytest.raises(KeyError):
        Model().fail()
    expected = {"forward": 1, "make": 3, "double": 2, "inherited": 1, "fail": 1}
    assert counts() == {f"{PREFIX}.{name}": number for name, number in expected.items()}
    assert Model.forward.__name__ == "forward"
    Detector.restore_original_callables()
    assert dict(vars(Model)) == before


def test_what_gets_no_instance_still_gets_none() -> None:
    Detector.wrap_callables([CallableId(Model, "cast"), CallableId(Model, "largest")])
    assert Model().cast("101") == Model.cast("101") == 5
    assert Model().largest(1, 2) == Model.largest(1, 2) == 2  # type: ignore[call-arg]
    assert counts() == {f"{PREFIX}.cast": 2, f"{PREFIX}.largest": 2}


def test_wrapping_again_adds_and_never_doubles() -> None:
    before = dict(vars(Model))
    Detector.wrap_callables([CallableId(Model, "forward")])
    Detector.wrap_callables([CallableId(Model, "double")])
    Detector.wrap_callables([CallableId(Model, "forward", ignored_args=("self",))], profile_cuda=False)
    Model().forward(1)
    Model.double(1)
    assert counts() == {f"{PREFIX}.forward": 1, f"{PREFIX}.double": 1}
    Detector.shutdown()
    assert dict(vars(Model)) == before


def test_instances_and_modules() -> None:
    first, second = Model(), Model()
    second.forward = lambda data: -data  # type: ignore[method-assign,misc,assignment]
    own = second.forward
    module = types.ModuleType("pipeline")
    module.load = lambda: "loaded"  # type: ignore[attr-defined]
    ids = [CallableId(first, "forward"), CallableId(second, "forward"), CallableId(module, "load")]
    Detector.wrap_callables(ids)
    Detector.wrap_callables(ids)
    assert (first.forward(1), second.forward(1), Model().forward(1), module.load()) == (2, -1, 2, "loaded")
    assert counts() == {"Model.forward": 2, "pipeline.load": 1}
    Detector.restore_original_callables()
    assert vars(first) == {}
    assert second.forward is own


def test_a_coroutine_is_measured_to_its_end() -> None:
    Detector.wrap_callables([CallableId(Model, "fetch")])
    assert asyncio.run(Model().fetch()) == "fetched"
    assert counts() == {f"{PREFIX}.fetch": 1}


def test_a_wrapper_that_somebody_kept_works_after_shutdown() -> None:
    Detector.wrap_callables([CallableId(Model, "double")])
    kept = Model.double
    Detector.shutdown()
    assert [kept(4) for _ in range(5)] == [8] * 5


def test_what_somebody_else_put_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "double", vars(Model)["double"])  # put back after this test
    Detector.wrap_callables([CallableId(Model, "double")])
    theirs = staticmethod(lambda value: 0)
    Model.double = theirs  # type: ignore[method-assign,assignment]
    Detector.restore_original_callables()
    assert vars(Model)["double"] is theirs


def test_the_filter_chooses_calls() -> None:
    seen: list[dict[str, Any]] = []

    def training(arguments: dict[str, Any]) -> bool:
        seen.append(arguments)
        return arguments["phase"] == "train"

    Detector.wrap_callables(
        [CallableId(Model, "forward", arg_filter_fn=training, ignored_args=("self", "data"))]
    )
    model = Model()
    assert [model.forward(1), model.forward(2, "eval"), model.forward(3, phase="train")] == [2, 3, 4]
    assert counts() == {f"{PREFIX}.forward": 2}
    assert seen == [{"phase": "train"}, {"phase": "eval"}, {"phase": "train"}]


def test_extra_arguments_split_a_section() -> None:
    def phase(arguments: dict[str, Any]) -> dict[str, object]:
        return {"phase": arguments["phase"]}

    Detector.wrap_callables([CallableId(Model, "forward", extra_args_fn=phase)])
    for name in ("train", "eval", "train"):
        Model().forward(1, name)
    assert counts() == {f"{PREFIX}.forward[phase=train]": 2, f"{PREFIX}.forward[phase=eval]": 1}


def test_a_filter_that_raises_does_not_hurt(caplog: pytest.LogCaptureFixture) -> None:
    def broken(arguments: dict[str, Any]) -> bool:
        raise LookupError("no phase")

    Detector.wrap_callables([CallableId(Model, "forward", arg_filter_fn=broken)])
    with caplog.at_level(logging.WARNING, "holdfast.straggler"):
        assert [Model().forward(1), Model().forward(2)] == [2, 3]
    assert counts() == {f"{PREFIX}.forward": 2}
    assert [one.getMessage() for one in caplog.records] == [
        f"{PREFIX}.forward is measured as a whole: its filter raised LookupError('no phase'). Fix the CallableId"
    ]


def test_wrong_arguments_raise_as_without_us() -> None:
    Detector.wrap_callables([CallableId(Model, "forward", arg_filter_fn=bool)])
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        Model().forward()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (lambda: [CallableId(Model, "backward")], "Model.backward does not exist"),
        (lambda: [CallableId(Model, "calls")], "Model.calls is not callable but int"),
        (lambda: [CallableId(int, "bit_length")], "int.bit_length cannot be replaced"),
        (lambda: ["Model.forward"], "must hold CallableId, not 'Model.forward'"),
        (lambda: CallableId(Model, "forward"), "callable_ids must be a list of CallableId"),
        (lambda: [CallableId(Model, "forward", arg_filter_fn=3)], "arg_filter_fn must be callable, not 3"),  # type: ignore[arg-type]
        (lambda: [CallableId(Model, "forward", ignored_args="self")], "ignored_args must be several names"),
    ],
)  # fmt: skip
def test_what_cannot_be_wrapped_is_said_and_nothing_is_wrapped(ids: Callable[[], Any], text: str) -> None:
    before = dict(vars(Model))
    good = [CallableId(Model, "forward"), CallableId(Model, "double")]
    given = ids()
    with pytest.raises(ValueError, match=rf"wrap_callables: .*{text}"):
        Detector.wrap_callables([*good, *given] if isinstance(given, list) else given)
    assert dict(vars(Model)) == before


def test_what_a_call_says_of_itself_never_raises_into_it(caplog: pytest.LogCaptureFixture) -> None:
    class Model:
        def forward(self, text: str) -> str:
            return text

    name = str(CallableId(Model, "forward"))
    with Detector.collective_section(f"{name}[text=taken]"):
        pass
    Detector.wrap_callables(
        [CallableId(Model, "forward", extra_args_fn=lambda arguments: {"text": arguments["text"]})]
    )
    for text in ("a prompt " * 200, "taken", "short"):
        assert Model().forward(text) == text
    report = Detector.generate_report()
    assert report is not None
    sections = report.local_section_summaries
    (cut,) = [one for one in sections if one.startswith(f"{name}[text=a prompt")]
    assert len(cut) == 1000 and cut.endswith("…")
    assert {name, f"{name}[text=short]"} <= sections.keys()
    assert sections[name][Statistic.NUM] == 1  # the one whose own name is another's
    assert "is measured as a whole" in caplog.text


def test_wrapping_that_is_refused_replaces_no_callable() -> None:
    """The name of the second one is that of a collective section."""
    second = CallableId(Model, "double")
    with Detector.collective_section(str(second)):
        pass
    before = dict(vars(Model))
    with pytest.raises(ValueError):
        Detector.wrap_callables([CallableId(Model, "forward"), second])
    assert dict(vars(Model)) == before
