"""Renders a judgement: report.txt, the page and incident.json, and the directory that has them.

wording.py               facts of a rank in words
text.py, next_steps.py   report.txt, and its line on what to do
page.py, page.html.j2    one self-contained page
redaction.py             secrets out of the evidence, before anything is written
store.py                 incidents/NNNN in the run directory: files, records, fragments (shell)
"""
