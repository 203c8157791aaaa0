"""Cannot be imported."""

import sys

sys.exit("is_broken: not here")
