"""The soak: many requests that were never sent before, to see what breaks or grows only after thousands of them."""
