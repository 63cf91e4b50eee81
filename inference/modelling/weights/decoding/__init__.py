"""Decode the weights of quantised checkpoints in plain PyTorch: codes, scales and zero points in, float32 out."""
