"""The registry of checkpoints: rows, files, uploads, detection, pages."""
