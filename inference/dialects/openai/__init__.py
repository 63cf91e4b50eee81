"""OpenAI's completions, chat and embeddings: requests and their fields."""
