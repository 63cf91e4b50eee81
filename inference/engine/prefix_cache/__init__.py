"""Find and keep the state of prompts' beginnings, in memory and on disk."""
