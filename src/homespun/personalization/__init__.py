"""One user beside the shared model: new users, generation, adapters to take away."""
