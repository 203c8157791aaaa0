"""Changes settings of Python that a script does not notice before it asks for them."""

import faulthandler
import gc
import sys

sys.setrecursionlimit(4321)
sys.setswitchinterval(0.01)
gc.set_threshold(4000, 20, 20)
faulthandler.enable()


def check() -> None:
    assert sys.getrecursionlimit() == 4321
    assert sys.getswitchinterval() == 0.01
    assert gc.get_threshold() == (4000, 20, 20)
    assert gc.isenabled()
    assert faulthandler.is_enabled()
    faulthandler.disable()
