"""LoRA adapters in a network: loaded, and added to the rows of the requests that name them."""
