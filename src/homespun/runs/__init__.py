"""Runs: the round, the clients of a simulation, and the run around them."""
