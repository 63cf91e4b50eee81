"""Find the quantised weights of a checkpoint from its headers and config: GPTQ, AWQ, FP8 and others. No torch."""
