"""Specs of layers and their parts: sizes, parameter shapes and states, without weights and without torch."""
