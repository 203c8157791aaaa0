"""The facts of this machine, as the judgements want them.

What always holds: a look changes nothing that outlives it. It may raise OSError; the examination says so then.
"""
