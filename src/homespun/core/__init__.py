"""The parts of a federated round: pure values and functions, no I/O."""
