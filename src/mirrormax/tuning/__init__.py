"""The choice of p and of the step size for a task, by validation."""
