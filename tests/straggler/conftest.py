"""What the straggler tests share: no test leaves the detector initialised."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.straggler import Detector


@pytest.fixture(autouse=True)
def _detector_is_shut_down() -> Iterator[None]:
    yield
    Detector.shutdown()
