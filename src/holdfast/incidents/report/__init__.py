"""Renders a judgement: report.txt, the page and incident.json, and the directory that has them."""
