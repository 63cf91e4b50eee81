"""Read ``stream_options`` of the APIs beside chat completions: whether a waiting stream says where it stands."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from inference.errors import InvalidRequest, UnsupportedFeature, shown

INCLUDE_QUEUE_HELP = "include_queue: while the request waits, send blazr.queue events: position, reason, estimate."


def read_include_queue(values: Mapping[str, Any], *, only_false: Collection[str] = ()) -> bool:
    """Return ``stream_options.include_queue`` of validated members.

    Args:
        only_false: Further options, which may be false or null.

    Raises:
        InvalidRequest: An option is unsupported or has the wrong type, or the response isn't streamed.
    """
    options = values.get("stream_options")
    if options is None:
        return False
    if not values.get("stream", False):
        raise InvalidRequest("stream_options only goes with stream: true.", param="stream_options")
    for name, value in options.items():
        param = f"stream_options.{name[:80]}"
        if name == "include_queue" and not (value is None or isinstance(value, bool)):
            raise InvalidRequest(f"{param} is {shown(value)}; it must be true or false.", param=param)
        if name in only_false and value not in (None, False):
            raise UnsupportedFeature(f"{param} is {shown(value)}; it must be false.", param=param)
        if name != "include_queue" and name not in only_false:
            raise UnsupportedFeature(
                f"{param} is not supported; there is {' and '.join((*only_false, 'include_queue'))}.", param=param
            )
    return bool(options.get("include_queue"))
