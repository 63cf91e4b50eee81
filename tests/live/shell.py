"""Run pieces of code with the settings of a data directory: ``python -m tests.live.shell``.

Reads a line of JSON for each piece and writes one: exit code, output, errors. Each piece runs in a fork of this
process, so it finds nothing of an earlier one, and needn't wait until Django is imported, which takes a second of a
processor.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from typing import NoReturn

from blazr_site.process_environment import use_settings


def main() -> None:
    """Run pieces until the input ends."""
    use_settings()
    import django

    from blazr_site.settings.storage import prepare_data_dir

    prepare_data_dir()
    django.setup()
    import models_registry.aliases
    import models_registry.services  # noqa: F401 - most pieces need both

    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            child = os.fork()
            if child == 0:
                os.dup2(output.fileno(), 1), os.dup2(errors.fileno(), 2)
                run(json.loads(line))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            texts = [(file.seek(0), file.read())[1] for file in (output, errors)]
        sys.stdout.write(json.dumps([status, *texts]) + "\n")
        sys.stdout.flush()


def run(code: str) -> NoReturn:
    """Run a piece and end the process; without the ends of modules and objects, which take longer than most pieces."""
    status = 0
    try:
        exec(code, {"__name__": "__main__"})
    except Exception:
        traceback.print_exc()
        status = 1
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
