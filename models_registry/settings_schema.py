"""Define the settings of a model in one table, used by validation, the form and the documents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from inference.errors import InvalidRequest
from inference.errors import shown as value_shown
from inference.values.output_format import REASONING_FORMATS, TOOL_FORMATS
from inference.values.speculative_options import SpeculativeOptions


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. A setting that isn't stored has the server's default.

    Attributes:
        kind: ``choice`` of ``choices``; ``integer`` or ``number`` from ``low`` to ``high``; ``speculative``: an
            object of ``SpeculativeOptions``, or its text form.
        also: One more legal number outside the range (-1: never).
        unit: Shown after the field; empty for plain counts and choices.
    """

    name: str
    label: str
    help: str
    kind: Literal["choice", "integer", "number", "speculative"]
    choices: tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    also: float | None = None
    unit: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON values, for the page."""
        return asdict(self)


MODEL_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "dtype",
        "Compute type",
        "Type that weights and activations have in memory. auto keeps what the device runs best.",
        "choice",
        choices=("auto", "float32", "bfloat16", "float16"),
    ),
    Setting(
        "quant",
        "Quantisation",
        "What the matrices become as they are loaded. auto keeps the codes of a quantised file, none makes floats of "
        "them; int8 and int4 take less memory and decode faster, and blazr quality says what that costs.",
        "choice",
        choices=("auto", "none", "int8", "int4"),
    ),
    Setting(
        "state_dtype",
        "Type of states",
        "Type that the recurrent state of a sequence has in memory and in files. bfloat16 halves it, and text may "
        "change: blazr quality --state-dtype says by how much. auto is float32.",
        "choice",
        choices=("auto", "float32", "bfloat16"),
    ),
    Setting(
        "max_model_len",
        "Longest sequence",
        "Prompt and output of a request together may have this many tokens.",
        "integer",
        low=1,
        high=1 << 24,
        unit="tokens",
    ),
    Setting(
        "max_num_seqs",
        "Requests at once",
        "How many requests are computed together; more wait in the queue.",
        "integer",
        low=1,
        high=4096,
    ),
    Setting(
        "max_adapters",
        "LoRA adapters at once",
        "How many of the model's adapters are in memory together; others take the place of those unused for longest. "
        "0 turns them off. Default: 8.",
        "integer",
        low=0,
        high=256,
    ),
    Setting(
        "speculative",
        "Speculative decoding",
        "ngram, mtp with the checkpoint's own head, or draft:MODEL with a smaller model of the same vocabulary, and "
        "perhaps ,k=NUMBER: draft the next tokens and verify several at once. The text stays the same, unless states "
        "are bfloat16.",
        "speculative",
    ),
    Setting(
        "pooling",
        "Embeddings from",
        "What becomes an embedding: the mean of the last layer's rows, the last row, or the first one (cls). A request "
        "may choose another. Default: mean.",
        "choice",
        choices=("mean", "last", "cls"),
    ),
    Setting(
        "tool_format",
        "Tool calls",
        "How the model writes tool calls. auto reads it from the chat template.",
        "choice",
        choices=("auto", *TOOL_FORMATS),
    ),
    Setting(
        "reasoning_format",
        "Thinking",
        "How the model marks its thinking, which outputs show apart. auto reads it from the chat template and the "
        "vocabulary; none leaves it in the text.",
        "choice",
        choices=("auto", "none", *REASONING_FORMATS),
    ),
    Setting(
        "pinned",
        "Pinned",
        "yes: once loaded, the model stays until it is asked to go; it never makes room for another one. Default: no.",
        "choice",
        choices=("no", "yes"),
    ),
    Setting(
        "keep_alive_s",
        "Keep loaded",
        "Unload after this long without a request. -1 keeps it until memory is needed; 0 unloads at once.",
        "number",
        low=0,
        high=31_536_000,
        also=-1,
        unit="s",
    ),
    Setting(
        "passport",
        "Passport",
        "auto: the server makes one by itself, once after the registration, where the model is small and no request "
        "runs. off: only who asks for one gets one. Default: auto. "
        "The settings' page turns them off for all models.",
        "choice",
        choices=("auto", "off"),
    ),
)
PARAMETERS = "parameters"
"""A setting beside the table: options of Ollama's requests that don't give them, as ``/api/create`` has set them."""
MAX_PARAMETERS = 64
_BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in MODEL_SETTINGS}


def validate_settings(values: Mapping[str, Any], *, max_position_embeddings: int = 0) -> dict[str, Any]:
    """Validate an operator's settings; null members, which mean the default, are dropped.

    Args:
        values: Setting name to JSON value.
        max_position_embeddings: Positions that the checkpoint supports; 0: unknown.

    Raises:
        InvalidRequest: A name is unknown, or a value has the wrong type or is out of range.
    """
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name == PARAMETERS:
            if value:
                checked[name] = _parameters(value)
            continue
        setting = _BY_NAME.get(name)
        if setting is None:
            raise InvalidRequest(
                f"{name[:60]!r} is not a model setting; the settings are {', '.join(_BY_NAME)}.", param=name[:60]
            )
        if value is not None:
            checked[name] = _checked(setting, value)
    length = checked.get("max_model_len")
    if length is not None and 0 < max_position_embeddings < length:
        raise InvalidRequest(
            f"max_model_len is {length}, the checkpoint has {max_position_embeddings} positions; "
            "lower it, or override max_position_embeddings first.",
            param="max_model_len",
        )
    return checked


def shown(setting: Setting, value: Any) -> Any:
    """Return a stored value as the form shows it."""
    if setting.kind == "speculative" and value is not None:
        return SpeculativeOptions.from_dict(value).to_line()
    return value


def _checked(setting: Setting, value: Any) -> str | int | float | dict[str, Any]:
    name = setting.name
    if setting.kind == "speculative":
        options = SpeculativeOptions.parse(value) if isinstance(value, str) else SpeculativeOptions.from_dict(value)
        return options.to_dict()
    if setting.kind == "choice":
        if value not in setting.choices:
            raise InvalidRequest(
                f"{name} is {_quoted(value)}; it must be one of {', '.join(setting.choices)}.", param=name
            )
        return str(value)
    number = value
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise InvalidRequest(f"{name} is {_quoted(value)}; it must be a number.", param=name)
    if setting.kind == "integer" and not isinstance(number, int):
        raise InvalidRequest(f"{name} is {_quoted(value)}; it must be an integer.", param=name)
    if number != setting.also and not setting.low <= number <= setting.high:
        extra = "" if setting.also is None else f" (or {_plain(setting.also)})"
        raise InvalidRequest(
            f"{name} is {_quoted(value)}; it must be from {_plain(setting.low)} to {_plain(setting.high)}{extra}.",
            param=name,
        )
    return number


def _quoted(value: Any) -> str:
    """Return a wrong value for a message, as JSON and TOML write switches."""
    return str(value).lower() if isinstance(value, bool) else value_shown(value)


def _plain(number: float) -> str:
    """Return a limit without an exponent: 16777216, not 1.67772e+07."""
    return str(int(number)) if number == int(number) else str(number)


def _parameters(value: Any) -> dict[str, Any]:
    """Check the form of parameters; the API that takes them checks their values."""
    if not isinstance(value, Mapping) or len(value) > MAX_PARAMETERS:
        raise InvalidRequest(f"{PARAMETERS} must be an object of at most {MAX_PARAMETERS} values.", param=PARAMETERS)
    return dict(value)
