"""Compile grammars and JSON schemas into constraints on tokens."""
