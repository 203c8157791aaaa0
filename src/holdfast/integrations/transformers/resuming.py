def choose(folder: str) -> str:
    import os
    import re

    best = max(
        (
            (int(m[1]), n)
            for n in (os.listdir(folder) if os.path.isdir(folder) else [])
            if (m := re.fullmatch(r"checkpoint-(\d+)", n))
            and not os.path.exists(os.path.join(folder, n, "checkpoint-is-incomplete.txt"))
        ),
        default=None,
    )
    return os.path.join(folder, best[1]) if best else ""
