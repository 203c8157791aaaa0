"""`make faults`: the corpus of faults. Each is done to a real job, and what Holdfast says of it held against its truth.

`truths` states what is true, written before and apart from the rules that are scored; `deeds` does it, inside of a rank
of `program.py`; `job` runs one scenario under a launcher; `score` compares. Pure: `kind`, `truths`, `scenarios`,
`score`, `page`. Does not cover: two faults at a time, GPUs.
"""
