"""Principal: a caller, what it may do (scopes, models) and how much (limits).

``principal_set`` sets the caller for the code below a view, so that every look-up of a model respects the models of
the key, whatever the endpoint. Standard library only.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from inference.errors import PermissionRefused
from inference.values.limits import UNLIMITED, KeyLimits

KEY_MARK = "blazr"
"""What an API key begins with."""
_KEY_IN_TEXT = re.compile(rf"\b({KEY_MARK}_[0-9A-Za-z]{{12}})_[0-9A-Za-z]{{8,}}")

Scope = Literal["generate", "models", "files", "admin"]
SCOPES: dict[str, str] = {
    "generate": "completions, chat, responses, embeddings, tokens: whatever a model computes",
    "models": "list models and look at them",
    "files": "files, batches and jobs",
    "admin": "everything, also other keys' usage and jobs; load, unload, change models",
}
DEFAULT_SCOPES = ("generate", "models", "files")
"""What a key may do that was made without naming scopes, or before there were any."""

# The longest beginning of the path decides; (method or *, beginning of the path, scope; None: any key).
_RULES: tuple[tuple[str, str, Scope | None], ...] = (
    ("*", "/", "generate"),
    ("GET", "/v1/models", "models"),
    ("GET", "/tokenizer_info", "models"),
    ("*", "/v1/models", "admin"),
    ("*", "/v1/files", "files"),
    ("*", "/v1/uploads", "files"),
    ("*", "/v1/batches", "files"),
    ("*", "/api/jobs", "files"),
    ("*", "/api/files", "files"),
    ("*", "/api/batches", "files"),
    ("*", "/v1/usage", None),
    ("*", "/v1/keys", "admin"),
    ("GET", "/api/tags", "models"),
    ("GET", "/api/ps", "models"),
    ("GET", "/api/version", None),
    ("POST", "/api/show", "models"),
    ("POST", "/api/pull", "admin"),
    ("DELETE", "/api/delete", "admin"),
    ("POST", "/api/copy", "admin"),
    ("POST", "/api/create", "admin"),
    ("POST", "/api/push", "admin"),
)


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller.

    Attributes:
        kind: ``local``: no key was needed; ``key``: an API key; ``user``: a staff member's session.
        tenant: Owns jobs and keeps prefix caches apart; ``local`` for everybody who needs no key.
        name: For people and logs.
        key_id: Primary key of the ApiKey row.
        scopes: What it may do, names of ``SCOPES``.
        models: Served names that it may use; None: all.
        limits: How much it may use.
    """

    kind: Literal["local", "key", "user"]
    tenant: str
    name: str
    key_id: int | None = None
    scopes: frozenset[str] = frozenset(DEFAULT_SCOPES)
    models: frozenset[str] | None = None
    limits: KeyLimits = UNLIMITED

    @property
    def sees_everything(self) -> bool:
        """Operators (on loopback, signed in as staff, or with an admin key) see all jobs; a key sees its own."""
        return self.kind != "key" or "admin" in self.scopes

    @property
    def cache_tenant(self) -> str:
        """What keeps this caller's cached prefixes apart; empty for callers who may share."""
        return self.tenant if self.kind == "key" else ""

    def check_scope(self, method: str, path: str) -> None:
        """Refuse a request that the key's scopes don't cover.

        Raises:
            PermissionRefused: Names the scope that is missing.
        """
        if self.sees_everything:
            return
        needed = scope_of(method, path)
        if needed is not None and needed not in self.scopes:
            raise PermissionRefused(
                f"{method} {path[:200]} needs an API key with the scope {needed!r}; this one has "
                f"{', '.join(sorted(self.scopes)) or 'none'}."
            )

    def check_model(self, name: str) -> None:
        """Refuse a model that the key isn't for, whether or not there is such a model.

        Raises:
            PermissionRefused: Names the models that it is for.
        """
        if self.models is not None and name not in self.models:
            shown = ", ".join(sorted(self.models)[:10])
            raise PermissionRefused(
                f"This API key may not use the model {name[:120]!r}; it is for {shown}.", param="model"
            )


def without_keys(text: str) -> str:
    """``text`` with the secret part of every API key in it left out, for logs."""
    return _KEY_IN_TEXT.sub(r"\1_…", text) if KEY_MARK in text else text


LOCAL = Principal("local", "local", "local")

_current: ContextVar[Principal] = ContextVar("principal", default=LOCAL)


def principal_set(principal: Principal) -> None:
    """Say who is calling, for the rest of this task (and threads that it waits for)."""
    _current.set(principal)


def principal_current() -> Principal:
    """Who is calling; ``LOCAL`` where nobody was named (workers, the command line)."""
    return _current.get()


def scope_of(method: str, path: str) -> Scope | None:
    """The scope that a request needs; None: a key of any scope will do."""
    best: tuple[int, int, Scope | None] = (-1, -1, "generate")
    for expected, beginning, scope in _RULES:
        if expected not in ("*", "GET" if method == "HEAD" else method):
            continue
        if path == beginning or path.startswith(beginning.rstrip("/") + "/"):
            best = max(best, (len(beginning), expected != "*", scope), key=lambda item: item[:2])
    return best[2]
