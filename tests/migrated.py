"""An empty database with all tables, made once per session of tests: servers that a test starts begin with a copy.

Migrations take two seconds of a processor at each start of a server from an empty data directory.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from blazr_site.settings.storage import DATABASE_FILE

_template: Path | None = None


def use_template(path: Path | None) -> None:
    """Let servers begin with copies of this database; None: from nothing, as they do outside of tests."""
    global _template
    _template = path


def copy_template(data_dir: Path) -> None:
    """Put the migrated database into the data directory of a server, if there is a template and no database yet."""
    database = data_dir / DATABASE_FILE
    if _template is None or database.exists():
        return
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    database.touch(mode=0o600)
    shutil.copyfile(_template, database)
