"""Evaluation of models user by user: metrics, pooling of runs, comparisons with confidence intervals."""
