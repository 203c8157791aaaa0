"""From `argv` to options that are understood, checked and complete: torchrun's own, and Holdfast's."""
