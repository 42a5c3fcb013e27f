"""For authors of methods: the contract that every method keeps, and attacks on its updates."""
