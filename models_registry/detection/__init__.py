"""What a checkpoint is, read from its files without torch and without Django."""
