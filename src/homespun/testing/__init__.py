"""For authors of methods: checks of the contract of methods, and an attack on updates."""
