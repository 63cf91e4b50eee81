"""Builders of hostile and harmless artefacts, each with the verdict that the intake has to give."""
