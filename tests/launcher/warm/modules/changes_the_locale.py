"""Changes the locale when it is imported."""

import locale

before = locale.setlocale(locale.LC_NUMERIC)
locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")


def check() -> None:
    assert before == "C"
    assert locale.setlocale(locale.LC_NUMERIC) == "C.UTF-8"
