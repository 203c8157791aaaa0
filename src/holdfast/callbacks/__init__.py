"""What the callbacks of every training framework share: their log lines, policies, simulated faults, when a training is
complete. Nothing here needs a framework.
"""
