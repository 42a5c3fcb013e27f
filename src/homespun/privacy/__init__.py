"""User-level differential privacy of client updates.

    settings -> clipping -> noise -> accounting -> ledger

Private parameters are not affected: they are never uploaded, so they need no noise.
"""
