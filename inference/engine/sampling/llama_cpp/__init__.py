"""Samplers of llama.cpp that vLLM lacks: DRY, top_n_sigma, typical_p, XTC, dynatemp, mirostat."""
