"""Generations that wait as database rows, and the runner that takes them."""
