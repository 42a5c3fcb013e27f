"""Analysis of a finished run: projections of user embeddings, assignments of users to heads or clusters."""
