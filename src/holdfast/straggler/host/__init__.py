"""What the host took from the training: pauses and waits that are neither the GPU's fault nor the work's.

kernel_texts    what /proc and control groups say, as numbers (pure)
pauses          garbage collection
losses          all causes, window by window
"""
