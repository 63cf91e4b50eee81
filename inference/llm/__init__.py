"""One loaded checkpoint: text in, events out; no Django."""
