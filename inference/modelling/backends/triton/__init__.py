"""Triton kernels: what the layers run on a CUDA device. Each has its reference in ``layers``.

Importing a module of this package needs triton; ``inference.modelling.backends.backend`` decides whether one is
imported.
"""
