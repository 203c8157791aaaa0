"""The side process that watches all ranks of a node: boards -> deadlines -> verdicts -> signals.

It imports no torch and no numpy, keeps nothing that is not also on the boards, and may be killed and replaced at
any time; see :mod:`.watch` for what it does and what it does not cover.
"""
