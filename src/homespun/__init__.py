"""homespun: personalized federated learning, language first.

What makes each person different is learned, kept and used at home and never travels.
"""

__version__ = "0.1.0"
