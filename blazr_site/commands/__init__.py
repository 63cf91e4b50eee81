"""One module per command of ``blazr``: HELP, add_arguments(parser), run(arguments) -> exit code.

Heavy imports (torch, Django) belong inside ``run``, so that ``blazr --help`` is instant.
"""
