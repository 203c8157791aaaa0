"""What the ranks tell each other when they report.

`channel` is the way they talk, `protocol` what they say: medians under agreed hashes, and names of sections once.
"""
