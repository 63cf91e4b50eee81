"""Who is calling, what it may do, and how much."""
