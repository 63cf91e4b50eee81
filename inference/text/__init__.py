"""Text and token ids, without torch and without Django."""
