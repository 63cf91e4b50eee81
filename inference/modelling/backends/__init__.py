"""Faster forms of layers for a device: native CPU kernels, Triton kernels, plain PyTorch."""
