"""Checks of the repository itself that ``make lint`` runs: layout, names and documents."""
