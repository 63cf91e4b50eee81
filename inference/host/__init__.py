"""What the machine, the process and the event loop provide; knows no models."""
