"""Layer types: a module each with its parameters and its readable PyTorch."""
