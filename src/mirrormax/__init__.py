"""Mirror descent for attention."""

__version__ = "0.1.0.dev0"
