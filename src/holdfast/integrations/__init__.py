"""What other frameworks and schedulers see of Holdfast; each module loads what it needs when it is imported."""
