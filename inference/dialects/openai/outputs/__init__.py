"""Format outputs as OpenAI's responses and chunks."""
