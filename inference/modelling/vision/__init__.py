"""The part of a model that sees: the tower that reads pixels, and what brings its rows to the text model's width."""
