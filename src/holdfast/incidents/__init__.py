"""What went wrong, who did it and how we know: evidence -> culprit -> report.

evidence.py, verdict.py   what is known of a node's ranks, and what follows from it, as plain values
encoding.py               both as JSON, the schema of incident.json
gathering/                takes the evidence: boards, /proc, stacks, the flight recorder
rules/                    pure: from the evidence of all nodes to one verdict
report/                   report.txt, the page, the folder incidents/NNNN
"""
