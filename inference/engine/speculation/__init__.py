"""Draft tokens ahead and verify them in one forward pass."""
