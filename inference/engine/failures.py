"""Turn what is raised while one request is computed into the error of this request."""

from __future__ import annotations

import logging

from inference.errors import BlazrError, GenerationFailed

logger = logging.getLogger(__name__)


def failure_of(error: BaseException, what: str) -> BlazrError:
    """Return a request's error for anything that was raised, also for a Rust panic, which is no ``Exception``.

    Args:
        error: Returned itself if it is a ``BlazrError``.
        what: What failed, as the beginning of a sentence.

    Raises:
        KeyboardInterrupt, SystemExit: ``error`` is one of these: the process ends.
    """
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    if isinstance(error, BlazrError):
        return error
    logger.error("%s", what, exc_info=error)
    return GenerationFailed(f"{what} ({type(error).__name__}).")
