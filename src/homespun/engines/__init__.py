"""Engines run local training: `loop` is the oracle, `cohort` the fast one. Both give the same numbers."""
