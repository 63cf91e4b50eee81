"""What runs inside the bounded child processes of ``inference.text.tokenisation.sandbox``; imports stay light."""
