"""User-level differential privacy of what clients send.

    settings -> clipping -> noise -> accounting -> ledger

Private parameters have no part in it: they never leave, so they need no noise.
"""
