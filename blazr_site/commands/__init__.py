"""Commands of ``blazr``: a module each with ``run(arguments) -> exit code``; ``arguments`` has parsers."""
