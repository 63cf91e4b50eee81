"""Store files of the API: bytes by digest, and the rows that name them."""
