"""Find the route of a path and its view, and define the largest body that each route takes."""

from __future__ import annotations

from django.urls import Resolver404, ResolverMatch, get_resolver

from inference.api.base import ApiView

SMALL_BODY_BYTES = 512 << 10
"""Largest body of routes that aren't listed below: settings, keys, batches, names of files, forms of the pages."""
LARGE_ROUTES = frozenset(
    {
        "api:completions",
        "api:chat-completions",
        "api:embeddings",
        "api:rerank",
        "api:responses",
        "api:responses-input-tokens",
        "api:messages",
        "api:messages-count-tokens",
        "api:tokenize",
        "api:detokenize",
        "api:apply-template",
        "api:infill",
        "api:jobs",
        "api:states",
        "api:ollama-generate",
        "api:ollama-chat",
        "api:ollama-embed",
        "api:ollama-embeddings",
    }
)
"""Routes whose body holds prompts; ``BLAZR_MAX_BODY_BYTES`` limits it."""
FILE_ROUTES = frozenset({"api:files", "api:state-content", "api:page-batch-check"})
"""Uploads of files of the API, streamed to the disk; ``BLAZR_MAX_FILE_BYTES`` limits them."""
BLOB_ROUTE = "api:ollama-blob"
"""Files of models by their digest, read to the disk; ``BLAZR_MAX_UPLOAD_BYTES`` limits them."""
DISK_ROUTES = FILE_ROUTES | {BLOB_ROUTE}
"""All whose body is a file."""
PIECE_ROUTE = "registry-upload-piece"
"""Pieces of a model's upload."""

_fixed: dict[str, ResolverMatch] = {}


def find_route(path: str) -> ResolverMatch:
    """Resolve a path as Django does, with a cache for routes without parameters, which are few.

    Raises:
        Resolver404: No route has this path.
    """
    found = _fixed.get(path)
    if found is None:
        found = get_resolver().resolve(path)
        if path == f"/{found.route}":
            _fixed[path] = found
    return found


def route_or_none(path: str) -> ResolverMatch | None:
    """Return the route of a path, if there is one."""
    try:
        return find_route(path)
    except Resolver404:
        return None


def api_view(route: ResolverMatch | None) -> type[ApiView] | None:
    """Return the route's view if it belongs to the API."""
    view = None if route is None else getattr(route.func, "view_class", None)
    return view if view is not None and issubclass(view, ApiView) else None


def is_bare(route: ResolverMatch | None) -> bool:
    """Whether the route's view runs without the pages' middleware, which has sessions and the pages' headers."""
    view = api_view(route)
    return route is not None and route.namespace == "api" and view is not None and not view.session_allowed
