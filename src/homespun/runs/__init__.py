"""The round, the run and its vault, and the clients of a simulation."""
