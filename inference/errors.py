"""Every exception of the project, in one tree.

    BlazrError                       code, http_status, retryable, param
      InvalidRequest          400    InvalidSamplingParams, PromptTooLong, InvalidChatTemplate,
                                     InvalidTokenIds, UnsupportedFeature, IdempotencyKeyReused (422)
      NotAuthenticated        401
      PermissionRefused       403
      NotFound                404    UnknownModel, UnknownRequest
      Conflict                409    IdempotencyKeyInUse
      RequestTooLarge         413
      CheckpointError         422    UnsupportedFormat, UnsupportedArchitecture, CorruptCheckpoint,
                                     MissingTensor, TensorShapeMismatch, ChecksumMismatch
      Unavailable             503    QueueFull (429), RateLimitExceeded (429), ModelLoading, ModelLoadFailed,
                                     OutOfCacheBlocks
      EngineError             500    GenerationFailed (this request only), EngineDead (restart the worker)
      StorageFull             507

A class fixes the stable ``code``, the HTTP status and whether a retry can help; the message names
the offending value, the limit and the remedy. Errors travel between processes as the dictionary
that ``to_dict`` makes and ``from_dict`` reads, and reach an API client as ``to_openai``.

Standard library only: every layer may import this module.
"""

from __future__ import annotations

import reprlib
from typing import Any, ClassVar, Self


class BlazrError(Exception):
    """Base of all errors that may be shown to a user.

    Args:
        message: One sentence or two: the value, the limit, the remedy. Never a traceback.
        param: The request field (or file, or tensor) that the message is about.
        retry_after_s: Seconds after which a retry makes sense; only for retryable errors.
    """

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def openai_type(self) -> str:
        """The ``type`` member of OpenAI's error object for this status."""
        status = self.http_status
        if status == 401:
            return "authentication_error"
        if status == 403:
            return "permission_error"
        if status == 429:
            return "rate_limit_error"
        if status < 500:
            return "invalid_request_error"
        return "server_overloaded" if status == 503 else "server_error"

    def to_openai(self) -> dict[str, Any]:
        """OpenAI's error object, ready for JSON."""
        return {"error": {"message": self.message, "type": self.openai_type, "param": self.param, "code": self.code}}

    def to_dict(self) -> dict[str, Any]:
        """A JSON form that ``from_dict`` turns back into the same class."""
        return {
            "class": type(self).__name__,
            "message": self.message,
            "param": self.param,
            "retry_after_s": self.retry_after_s,
        }

    @staticmethod
    def from_dict(payload: dict[str, Any]) -> BlazrError:
        """Rebuild an error that crossed a process border; an unknown class becomes ``EngineError``."""
        cls = _classes().get(str(payload.get("class")), EngineError)
        return cls(
            str(payload.get("message", "unknown error")),
            param=payload.get("param"),
            retry_after_s=payload.get("retry_after_s"),
        )


class InvalidRequest(BlazrError):
    """The request can't be served as it is written."""

    code = "invalid_request"
    http_status = 400


class InvalidSamplingParams(InvalidRequest):
    """A sampling parameter is outside its range or of the wrong type."""

    code = "invalid_value"


class PromptTooLong(InvalidRequest):
    """Prompt plus requested output exceed the model's context.

    The message is OpenAI's: client libraries look for its first sentence, and for the figures without separators.
    """

    code = "context_length_exceeded"

    @classmethod
    def of(
        cls,
        max_model_len: int,
        num_prompt_tokens: int,
        max_tokens: int | None = None,
        *,
        noun: str = "prompt",
        param: str | None = None,
    ) -> Self:
        """The error for these figures.

        Args:
            max_model_len: Most tokens of prompt and output together.
            max_tokens: Of the output, as requested; None or 0: no number was requested.
            noun: What the prompt's tokens are counted in: messages, prompt, input.
            param: The request field; default: the prompt's, or ``max_tokens`` if the prompt alone would fit.
        """
        context = f"This model's maximum context length is {max_model_len} tokens."
        if param is None:
            param = noun if num_prompt_tokens >= max_model_len or not max_tokens else "max_tokens"
        if not max_tokens:
            return cls(
                f"{context} However, your {noun} resulted in {num_prompt_tokens} tokens. "
                f"Please reduce the length of the {noun}.",
                param=param,
            )
        return cls(
            f"{context} However, you requested {num_prompt_tokens + max_tokens} tokens ({num_prompt_tokens} in the "
            f"{noun}, {max_tokens} in the completion). Please reduce the length of the {noun} or completion.",
            param=param,
        )

    @classmethod
    def of_chars(cls, max_model_len: int, num_chars: int, *, noun: str = "prompt") -> Self:
        """The error for a text with more characters than so many tokens can encode; it isn't tokenised at all."""
        return cls(
            f"This model's maximum context length is {max_model_len} tokens. However, your {noun} resulted in "
            f"{num_chars} characters, which is more than {max_model_len} tokens can encode. Please reduce the length "
            f"of the {noun}.",
            param=noun,
        )


class InvalidTokenIds(InvalidRequest):
    """Token ids outside the model's embedding."""

    code = "invalid_token_ids"


class InvalidChatTemplate(InvalidRequest):
    """The chat template refused the messages, or can't be rendered within its limits."""

    code = "invalid_chat_template"


class UnsupportedFeature(InvalidRequest):
    """A parameter or feature that this server (or this model) doesn't honour."""

    code = "unsupported_parameter"


class IdempotencyKeyReused(InvalidRequest):
    """The idempotency key came with another request before."""

    code = "idempotency_key_reused"
    http_status = 422


class NotAuthenticated(BlazrError):
    """No API key, or one that isn't valid."""

    code = "invalid_api_key"
    http_status = 401


class PermissionRefused(BlazrError):
    """Known caller, not allowed."""

    code = "permission_denied"
    http_status = 403


class NotFound(BlazrError):
    """The named thing does not exist (or belongs to someone else)."""

    code = "not_found"
    http_status = 404


class UnknownModel(NotFound):
    """No checkpoint is served under that name."""

    code = "model_not_found"


class UnknownRequest(NotFound):
    """No generation request has that id."""

    code = "request_not_found"


class Conflict(BlazrError):
    """The thing is in a state that doesn't allow this."""

    code = "conflict"
    http_status = 409


class IdempotencyKeyInUse(Conflict):
    """The request that has this idempotency key is still running."""

    code = "idempotency_key_in_use"
    retryable = True


class RequestTooLarge(BlazrError):
    """A body or an upload is over its limit."""

    code = "request_too_large"
    http_status = 413


class CheckpointError(BlazrError):
    """The checkpoint can't be served."""

    code = "invalid_checkpoint"
    http_status = 422


class UnsupportedFormat(CheckpointError):
    """Not a file format that is read here (pickles among them)."""

    code = "unsupported_format"


class UnsupportedArchitecture(CheckpointError):
    """Readable tensors, but no known layer types."""

    code = "unsupported_architecture"


class CorruptCheckpoint(CheckpointError):
    """A file breaks its own format: truncated, overlapping, oversized, not JSON."""

    code = "corrupt_checkpoint"


class MissingTensor(CheckpointError):
    """A tensor (or a whole shard) that the architecture needs isn't there."""

    code = "missing_tensor"


class TensorShapeMismatch(CheckpointError):
    """A tensor's shape contradicts the configuration or another tensor."""

    code = "tensor_shape_mismatch"


class ChecksumMismatch(CheckpointError):
    """The bytes on disk are not the bytes that were verified."""

    code = "checksum_mismatch"


class Unavailable(BlazrError):
    """Not now; a retry can succeed."""

    code = "unavailable"
    http_status = 503
    retryable = True


class QueueFull(Unavailable):
    """The model's queue has no room."""

    code = "queue_full"
    http_status = 429


class RateLimitExceeded(Unavailable):
    """The caller has used what its key allows for now."""

    code = "rate_limit_exceeded"
    http_status = 429


class ModelLoading(Unavailable):
    """The model didn't become ready in time."""

    code = "model_loading"


class ModelLoadFailed(Unavailable):
    """The model can't be loaded on this worker (its memory budget, its device)."""

    code = "model_load_failed"


class OutOfCacheBlocks(Unavailable):
    """The request can never fit the state budget of this worker.

    Attributes:
        needed_bytes, budget_bytes: What was needed, and the budget, where the plan of a load raised it; otherwise 0.
            They stay in this process.
    """

    code = "out_of_cache_blocks"
    needed_bytes = 0
    budget_bytes = 0


class EngineError(BlazrError):
    """Something broke on our side."""

    code = "internal_error"


class GenerationFailed(EngineError):
    """This one request failed; its neighbours go on."""

    code = "generation_failed"


class NumericalError(GenerationFailed):
    """The logits of this request hold NaN or +inf, or nothing but -inf."""


class GenerationCancelled(GenerationFailed):
    """Somebody who may has cancelled the request."""

    code = "generation_cancelled"


class EngineDead(EngineError):
    """The engine can't go on; the worker has to restart."""

    code = "engine_dead"
    retryable = True


class StorageFull(BlazrError):
    """No room on the disk."""

    code = "insufficient_storage"
    http_status = 507


# A client's value can have half a million parts, so only its first ones are written.
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxtuple, _SHORT.maxdict = 3, 15, 15, 15
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 240


def shown(value: object) -> str:
    """Return ``value`` for an error message: short, on one line, in a time that doesn't grow with the value."""
    text = _SHORT.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _classes() -> dict[str, type[BlazrError]]:
    found: dict[str, type[BlazrError]] = {}
    stack: list[type[BlazrError]] = [BlazrError]
    while stack:
        cls = stack.pop()
        found[cls.__name__] = cls
        stack.extend(cls.__subclasses__())
    return found
