"""Comparisons of configurations and seeds, and their results."""
