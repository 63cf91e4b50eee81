"""A small demo model and how it is trained."""
