"""From the evidence of all nodes to one verdict. Pure: the same evidence always gives the same verdict.

frames.py, kernel.py, sections.py   what a stack, the kernel and a section's name say
whereabouts.py, doing.py            what one rank does
recorder.py                         the collectives that ranks were in, compared
scene.py                            all ranks of the incident beside each other
endings.py, crash.py                who ended first, and who merely followed
situation.py, hang.py               for whom the others wait, and what it does, by
                                    unable.py, choice.py, collectives.py and unseen.py
accusation.py, wording.py           verdicts and their sentences
"""

from .judge import judge

__all__ = ["judge"]
