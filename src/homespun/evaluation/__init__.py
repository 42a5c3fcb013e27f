"""How good a model is for whom: protocols and metrics."""
