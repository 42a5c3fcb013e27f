"""Plain networks; those that can carry a leading client axis say so with a `stacked` method."""
