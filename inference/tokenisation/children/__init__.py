"""What runs inside the bounded child processes of ``inference.tokenisation.sandbox``; imports stay light."""
