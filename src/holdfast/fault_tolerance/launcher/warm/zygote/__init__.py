"""The zygote: an interpreter that has the command line of a rank, imports what ranks import, and only forks.

It is started like a rank and stays within Python's own start (``import site``, in the prologue), so that a *standby*
that becomes a rank does what any interpreter does next: it opens the script and runs it as ``__main__``. What follows
from the command line, from the script's folder and from the end of a program is Python's own work therefore, and not
imitated here. Loaded by the prologue as ``holdfast_zygote``, and forgotten by a standby that becomes a rank.

What always holds: a zygote has one thread whenever it forks, and never runs the script itself. Nothing of Holdfast is
imported, because a rank's interpreter may not have it.
Does not cover: what a module keeps of the ranks' environment in native code; modules that differ from fork to fork in
ways that no check of the process shows.
"""
