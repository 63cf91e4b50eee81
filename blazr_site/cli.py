"""Run the ``blazr`` command: parse the command line, set the process up, run the command's module.

A command is an entry of ``blazr_site.commands.arguments`` and a module of ``blazr_site.commands`` with
``run(arguments) -> exit code``, which may import anything at its head.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from blazr_site.commands.arguments import COMMANDS
from blazr_site.commands.set_up import set_up
from blazr_site.process_environment import use_short_waits
from inference.errors import BlazrError
from models_registry.detection.printable import printable

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
_PATH_ERRORS = ("Could not determine home directory", "Symlink loop")
"""Beginnings of the RuntimeErrors that pathlib raises for ~NAME and for links that lead to themselves."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0; 2 after an error that the user can correct, reported in one line; 130 after Ctrl-C.
    """
    parsed = _parser().parse_args(arguments)
    use_short_waits()
    try:
        set_up(parsed, COMMANDS[parsed.command].needs_of(parsed))
        code: int = import_module(f"blazr_site.commands.{parsed.command}").run(parsed)
        return code
    except BlazrError as error:
        return _complain(error.message)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of the output (head, less) has closed the pipe, so nothing is written at exit either.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        return _complain(f"{error.filename} can't be used: {(error.strerror or str(error)).lower()}.")
    except RuntimeError as error:
        if not str(error).startswith(_PATH_ERRORS):
            raise
        return _complain(f"a path can't be used: {error}")
    except Exception as error:
        # For a wrong setting. Imported only now, because most commands never need Django.
        from django.core.exceptions import ImproperlyConfigured

        if isinstance(error, ImproperlyConfigured):
            return _complain(str(error))
        raise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="blazr", description="Serves hybrid language models behind OpenAI's API, and runs them in the terminal."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(commands.add_parser(name, help=command.help, description=command.help))
    return parser


def _complain(message: str) -> int:
    # A message may quote what a checkpoint's files or a server say.
    sys.stderr.write(f"error: {printable(' '.join(message.split()))}\n")
    return EXIT_BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
