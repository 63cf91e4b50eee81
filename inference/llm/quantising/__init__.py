"""Quantising by measurement: what each matrix costs, a plan of mixed forms, and the files."""
