"""What a LoRA adapter is and which parameters of a network it changes, read without torch."""
