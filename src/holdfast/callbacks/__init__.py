"""What the callbacks of every training framework share: supervision, preemption, stragglers, the constructors of the
callbacks, their log, and when a training is complete. No framework is needed here, and importing needs no torch.
"""
