"""Native CPU kernels: C++ beside the PyTorch code that defines them, built where a compiler is present.

``build`` compiles ``src/*.cpp`` into one library of ``torch.ops.blazr`` operators; ``library`` loads it. Where there is
no library (no compiler, another processor) every layer runs its PyTorch form, which the tests hold the kernels to.
"""
