"""One module per command of ``blazr``, with ``run(arguments) -> exit code``; ``arguments`` has their parsers."""
