"""From facts to findings. Pure: the facts are values, which `looks` takes from the machine."""
