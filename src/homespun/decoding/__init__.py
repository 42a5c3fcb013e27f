"""Generates sequences from any step-wise decoder: beam search, diverse beams, greedy decoding and sampling."""
