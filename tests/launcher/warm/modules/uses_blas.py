"""Imports numpy, whose OpenBLAS has its threads from then on."""

import numpy

product = numpy.ones((300, 300)) @ numpy.ones((300, 300))


def check() -> None:
    again = numpy.ones((300, 300)) @ numpy.ones((300, 300))
    assert (again == product).all()
    assert float(again[0, 0]) == 300
