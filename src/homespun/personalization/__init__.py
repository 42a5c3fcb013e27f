"""Personal models: new users, predictions and text generation for one user, and exported adapters."""
