"""What people see of an incident: its report in text, its page, its record, and the folder that they are kept in.

grouping.py, states.py, frames.py     ranks in the same place; what each is doing; which calls are the user's own
wording.py, findings.py               a rank's facts in words
text.py                               report.txt
record.py                             incident.json
redaction.py                          secrets out of the evidence, before anything is written
page.py, grid.py, timeline.py …       one self-contained page
folder.py, kept.py                    incidents/NNNN in the run directory (shell)
"""
