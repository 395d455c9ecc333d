"""The choice of p and of the step size for a task, by validation."""

CHOSEN = ("optimizer", "p", "lr")  # what a study chooses; the rest is given
