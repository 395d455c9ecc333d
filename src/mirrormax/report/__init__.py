"""Figures, made from saved results only."""
