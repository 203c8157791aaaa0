"""`make gpu`: what can only be tried on a GPU, in one command; `python -m tests.gpu --help`."""
