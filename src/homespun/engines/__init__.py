"""How local work is carried out: `loop` is the oracle, `cohort` the fast one. Same numbers."""
