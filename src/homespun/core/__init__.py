"""What a round is made of: pure values and functions, no I/O."""
