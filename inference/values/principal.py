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

Scope = Literal["generate", "models", "files", "lifecycle", "priority", "metrics", "admin"]
SCOPES: dict[str, str] = {
    "generate": "completions, chat, responses, embeddings, tokens: whatever a model computes",
    "models": "list models and look at them",
    "files": "files, saved states, batches and jobs",
    "lifecycle": "load, unload and pin models, also by keep_alive",
    "priority": "a priority below 0, which goes ahead of other requests",
    "metrics": "read /metrics",
    "admin": "everything, also keys, other keys' usage and jobs, names and removal of models",
}
DEFAULT_SCOPES = ("generate", "models", "files")
"""What a key may do that was made without naming scopes. Its requests load a model that isn't resident."""

MIN_KEEP_ALIVE_S, MAX_KEEP_ALIVE_S = 300.0, 3600.0
"""``keep_alive`` of callers without the scope ``lifecycle``: less unloads a model that others use, more pins it."""

# The longest beginning of the path decides; (method or *, beginning of the path, scope; None: any key).
_LIFECYCLE_PATH = re.compile(r"/v1/models/[^/]+/(load|unload|pin)")
_RULES: tuple[tuple[str, str, Scope | None], ...] = (
    ("*", "/", "generate"),
    ("GET", "/v1/models", "models"),
    ("GET", "/tokenizer_info", "models"),
    ("*", "/v1/models", "admin"),
    ("*", "/v1/load_lora_adapter", "admin"),
    ("*", "/v1/unload_lora_adapter", "admin"),
    ("*", "/v1/files", "files"),
    ("*", "/v1/uploads", "files"),
    ("*", "/v1/batches", "files"),
    ("*", "/v1/states", "files"),
    ("*", "/api/jobs", "files"),
    ("*", "/api/files", "files"),
    ("*", "/api/batches", "files"),
    ("*", "/api/schedules", "files"),
    ("*", "/v1/usage", None),
    ("*", "/v1/keys", "admin"),
    ("GET", "/metrics", "metrics"),
    ("GET", "/api/tags", "models"),
    ("GET", "/api/ps", "models"),
    ("GET", "/api/version", None),
    ("POST", "/api/show", "models"),
    ("POST", "/api/pull", "admin"),
    ("DELETE", "/api/delete", "admin"),
    ("POST", "/api/copy", "admin"),
    ("POST", "/api/create", "admin"),
    ("*", "/api/blobs", "admin"),
    ("POST", "/api/push", "admin"),
)
_FURTHER: dict[tuple[str, str], Scope] = {("POST", "/v1/states"): "generate"}
"""Requests that need a second scope: saving a state computes its prompt."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller.

    Attributes:
        kind: ``local``: no key was needed; ``key``: an API key; ``user``: an account's session.
        tenant: Owns jobs: ``key:N`` or ``user:N`` with the row's primary key; ``local`` for who needs no key.
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
        """Whether it sees the jobs, files, requests and usage of all callers."""
        return "admin" in self.scopes

    def has_scope(self, scope: Scope) -> bool:
        """Whether the caller has a scope; ``admin`` includes all others."""
        return scope in self.scopes or "admin" in self.scopes

    def check_scope(self, method: str, path: str) -> None:
        """Refuse a request that the caller's scopes don't cover.

        Raises:
            PermissionRefused: Names the scope that is missing.
        """
        for needed in (scope_of(method, path), _FURTHER.get((method, path))):
            if needed is not None and not self.has_scope(needed):
                raise PermissionRefused(f"{method} {path[:200]} {self._missing(needed)}")

    def check_options(self, *, priority: int, keep_alive_s: float | None) -> None:
        """Refuse options of a request that affect the requests of others.

        Raises:
            PermissionRefused: Names the option, and the scope that is missing.
        """
        if priority < 0 and not self.has_scope("priority"):
            raise PermissionRefused(
                f"priority is {priority}, which {self._missing('priority')} Use 0 or more.", param="priority"
            )
        if keep_alive_s is None or MIN_KEEP_ALIVE_S <= keep_alive_s <= MAX_KEEP_ALIVE_S:
            return
        if not self.has_scope("lifecycle"):
            raise PermissionRefused(
                f"keep_alive is {keep_alive_s:g} seconds, which {self._missing('lifecycle')} Leave it out, or use "
                f"{MIN_KEEP_ALIVE_S:g} to {MAX_KEEP_ALIVE_S:g} seconds.",
                param="keep_alive",
            )

    def _missing(self, scope: Scope) -> str:
        if self.kind == "user":
            return f"needs an account with the scope {scope!r}; ask for another role."
        if self.kind == "local":
            further = " --scope generate" if scope in ("lifecycle", "priority") else ""
            command = f"blazr key create NAME --scope {scope}{further}"
            return f"needs an API key with the scope {scope!r}; make one with {command}."
        own = ", ".join(sorted(self.scopes)) or "none"
        return f"needs an API key with the scope {scope!r}; this one has {own}."

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


LOCAL = Principal("local", "local", "local", scopes=frozenset(SCOPES) - {"admin"})
"""A caller on this machine who needs no key."""
UNAUTHENTICATED = Principal("local", "local", "local")
"""A caller from elsewhere on a server that was told to require no keys."""

_current: ContextVar[Principal] = ContextVar("principal", default=LOCAL)


def principal_set(principal: Principal) -> None:
    """Say who is calling, for the rest of this task (and threads that it waits for)."""
    _current.set(principal)


def principal_current() -> Principal:
    """Who is calling; ``LOCAL`` where nobody was named (workers, the command line)."""
    return _current.get()


def scope_of(method: str, path: str) -> Scope | None:
    """The scope that a request needs at least; None: a key of any scope will do."""
    if method == "POST" and _LIFECYCLE_PATH.fullmatch(path):
        return "lifecycle"
    best: tuple[int, int, Scope | None] = (-1, -1, "generate")
    for expected, beginning, scope in _RULES:
        if expected not in ("*", "GET" if method == "HEAD" else method):
            continue
        if path == beginning or path.startswith(beginning.rstrip("/") + "/"):
            best = max(best, (len(beginning), expected != "*", scope), key=lambda item: item[:2])
    return best[2]
