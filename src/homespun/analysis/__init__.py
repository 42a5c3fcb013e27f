"""What a finished run learned about its users: projections of embeddings, assignments to heads."""
