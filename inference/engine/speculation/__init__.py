"""Draft tokens and verify them in one forward pass."""
