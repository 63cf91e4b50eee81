"""Inference for hybrid language models: the engine, the workers that hold it, and the APIs in front of them."""
