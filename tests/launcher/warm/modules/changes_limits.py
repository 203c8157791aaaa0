"""Changes the mask for new files, and a limit, when it is imported."""

import os
import resource

before = os.umask(0o077), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
resource.setrlimit(resource.RLIMIT_NOFILE, (777, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def check() -> None:
    assert before[0] != 0o077
    assert before[1] != 777
    assert os.umask(before[0]) == 0o077
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 777
