"""GGUF files: their container, and how they are read as the checkpoints that they were converted from."""
