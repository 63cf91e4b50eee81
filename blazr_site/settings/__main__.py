"""Print the environment variables that the settings read, as a Markdown table."""

from blazr_site import settings as _settings  # noqa: F401 - reading them declares the variables
from blazr_site.settings import env


def main() -> None:
    """Write the table to standard output."""
    print("| Variable | Kind | Default | Meaning |\n|---|---|---|---|")  # noqa: T201
    for variable in sorted(env.KNOWN.values(), key=lambda item: item.name):
        print(f"| `{variable.name}` | {variable.kind} | {variable.default or '–'} | {variable.help} |")  # noqa: T201


if __name__ == "__main__":
    main()
