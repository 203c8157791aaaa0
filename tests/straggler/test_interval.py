"""When a report is due, with given times."""

from __future__ import annotations

from holdfast.straggler.session import ESTIMATION_STEPS, ReportInterval


def steps(interval: ReportInterval, seconds: float, count: int, now: float = 0.0) -> list[int]:
    """The steps, of so many of so many seconds each, in which a report is due."""
    due = []
    for number in range(1, count + 1):
        interval.step(now + number * seconds)
        estimate = interval.estimate()
        if not interval.agreed and estimate is not None:
            interval.agree(estimate)
        if interval.due():
            due.append(number)
    return due


def test_a_report_each_interval_once_steps_are_known() -> None:
    assert steps(ReportInterval(60.0, 1), seconds=2.0, count=100) == [30, 60, 90]


def test_no_report_before_steps_are_known() -> None:
    assert steps(ReportInterval(1.0, 1), seconds=1.0, count=ESTIMATION_STEPS + 3) == [17, 18, 19]


def test_steps_longer_than_the_interval_report_each_time() -> None:
    assert steps(ReportInterval(1.0, 1), seconds=5.0, count=19) == [17, 18, 19]


def test_interval_zero_reports_as_often_as_possible() -> None:
    assert steps(ReportInterval(0.0, 1), seconds=1.0, count=ESTIMATION_STEPS + 3) == [17, 18, 19]
    assert steps(ReportInterval(0.0, 20), seconds=1.0, count=60) == [20, 40, 60]


def test_something_is_measured_between_reports() -> None:
    assert steps(ReportInterval(1.0, 40), seconds=1.0, count=100) == [40, 80]


def test_all_ranks_follow_the_greatest_estimate() -> None:
    fast, slow = ReportInterval(60.0, 1), ReportInterval(60.0, 1)
    due = []
    for number in range(1, 200):
        fast.step(number * 1.0)
        slow.step(number * 3.0)
        if number == ESTIMATION_STEPS + 1:
            estimates = [fast.estimate(), slow.estimate()]
            assert estimates == [60.0, 20.0]
            for one in (fast, slow):
                one.agree(60.0)
        due_here = [fast.due(), slow.due()]
        assert due_here[0] == due_here[1]
        due += [number] if due_here[0] else []
    assert due == [60, 120, 180]


def test_a_revised_number_counts_from_the_next_report_on() -> None:
    interval = ReportInterval(60.0, 1)
    assert steps(interval, seconds=10.0, count=18) == [18]
    interval.agree(3)
    assert steps(interval, seconds=10.0, count=8, now=180.0) == [6]  # the one of the old number, then
    assert steps(interval, seconds=10.0, count=4, now=260.0) == [1, 4]


def test_the_time_of_a_report_is_no_step() -> None:
    interval = ReportInterval(60.0, 1)
    for number in range(ESTIMATION_STEPS + 1):
        interval.step(number * 10.0 + 8.0)
        interval.resume(number * 10.0 + 9.0)
    assert interval.estimate() == 60.0 / 9.0
