"""Load the tensors of checkpoint files into a network."""
