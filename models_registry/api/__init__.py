"""The registry's JSON API, for its pages."""
