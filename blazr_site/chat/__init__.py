"""The conversation of ``blazr chat`` in a terminal: with a server's model, or one in this process."""
