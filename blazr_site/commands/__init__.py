"""Define the commands of ``blazr``: each module has ``run(arguments) -> exit code``."""
