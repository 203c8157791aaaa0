"""`make compare`: Holdfast side by side with torchrun and NVRx, measured in one run on the machine at hand."""
