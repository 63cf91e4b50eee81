"""From a model specification to logits: families, layers, weights and their faster forms."""
