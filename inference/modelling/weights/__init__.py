"""Weights: from files into networks. Import ``load_network`` from ``inference.modelling.weights.loader``."""
