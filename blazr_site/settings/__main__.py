"""Print the variables that the settings read, as the Markdown table of ``docs/configuration.md``."""

from blazr_site import settings as _settings  # noqa: F401 - reading them declares the variables
from blazr_site.settings import read


def table() -> str:
    """Return the table, one row per variable, by name."""
    lines = ["| Variable | `blazr.toml` | Kind | Default | Meaning |", "|---|---|---|---|---|"]
    for variable in sorted(read.KNOWN.values(), key=lambda item: item.name):
        cells = (f"`{variable.name}`", f"`{variable.key}`", variable.kind, variable.default or "–", variable.help)
        # A bare pipe would end the cell.
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201
