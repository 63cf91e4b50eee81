"""Faults of a running server: rows.py lists them, site.py runs the processes, ledger.py and records.py check."""
