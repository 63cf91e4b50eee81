"""Read requests of Ollama's API."""
