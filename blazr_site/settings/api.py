"""Settings of HTTP: addresses, keys, limits, DRF and the OpenAPI schema."""

from __future__ import annotations

import os

from django.core.exceptions import ImproperlyConfigured

from blazr_site.settings import read
from inference.host.addresses import is_loopback

BLAZR_HOST: str = read.text("BLAZR_HOST", "127.0.0.1", help="Address that the web server is bound to.")
BLAZR_PORT = read.required_integer("BLAZR_PORT", 8080, low=0, high=65535, help="Port of the web server; 0: a free one.")
BLAZR_NO_AUTH = read.flag(
    "BLAZR_NO_AUTH", False, help="Serve the API without keys even beyond loopback; needs BLAZR_ALLOWED_HOSTS there."
)


BLAZR_MAX_BODY_BYTES: int = read.required_size_bytes(
    "BLAZR_MAX_BODY_BYTES", 16 << 20, low=1 << 10, help="Largest body of an API request."
)

_LOCAL_HOSTS = ["localhost", "127.0.0.1", "[::1]"]
# On loopback only loopback's names are served, which prevents DNS rebinding by foreign pages.
ALLOWED_HOSTS = read.texts(
    "BLAZR_ALLOWED_HOSTS",
    _LOCAL_HOSTS if is_loopback(BLAZR_HOST) else ["*"],
    help="Host names that the site answers to. Default: loopback's names, or all when bound to anything else.",
)
BLAZR_HTTPS = read.flag("BLAZR_HTTPS", False, help="Reached over HTTPS through a proxy: secure cookies, HSTS.")
# A proxy may stand before a server that is bound to loopback; HTTPS and names beyond loopback reveal it. Forwarded
# requests and other machines need a key in any case (inference.access.authentication).
_IS_FOR_THIS_MACHINE = is_loopback(BLAZR_HOST) and not BLAZR_HTTPS and all(map(is_loopback, ALLOWED_HOSTS))
BLAZR_API_KEY_REQUIRED = not _IS_FOR_THIS_MACHINE and not BLAZR_NO_AUTH
if BLAZR_NO_AUTH and "*" in ALLOWED_HOSTS:
    raise ImproperlyConfigured(
        f"BLAZR_NO_AUTH (--no-auth) on the address {BLAZR_HOST} needs BLAZR_ALLOWED_HOSTS, the names under which the "
        "server is reached: any web page could otherwise use the server through its visitors' browsers (DNS "
        "rebinding). Set BLAZR_ALLOWED_HOSTS=name,192.168.1.10, or leave --no-auth out."
    )
# Internal, not a setting: the fault points of a test's process (inference/host/fault_points.py).
BLAZR_FAULTS = os.environ.get("_BLAZR_FAULTS", "")
if BLAZR_FAULTS and not _IS_FOR_THIS_MACHINE:
    raise ImproperlyConfigured(
        f"_BLAZR_FAULTS is {BLAZR_FAULTS[:80]!r}: it ends processes on purpose, for tests, and is refused on a server "
        "that others reach. Remove it."
    )
# Pages of this site's names may post, even if the proxy doesn't forward the Host header.
CSRF_TRUSTED_ORIGINS = [
    f"https://{'*' if name.startswith('.') else ''}{name}" for name in ALLOWED_HOSTS if BLAZR_HTTPS and name != "*"
]
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = BLAZR_HTTPS
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
if BLAZR_HTTPS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_HSTS_SECONDS = 31_536_000
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SECURE_SSL_REDIRECT = True
# The preload list of browsers takes a whole domain and can hardly be left again: its owner decides, not this server.
SILENCED_SYSTEM_CHECKS = ["security.W021"]
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
DATA_UPLOAD_MAX_MEMORY_SIZE = BLAZR_MAX_BODY_BYTES

REST_FRAMEWORK = {
    # Default deny: a view without own classes is for staff with a session.
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.SessionAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAdminUser"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_PAGINATION_CLASS": None,
    "EXCEPTION_HANDLER": "inference.api.exception_handler.exception_handler",
    "COERCE_DECIMAL_TO_STRING": False,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "blazr",
    "DESCRIPTION": "Inference for hybrid language models, with OpenAI's endpoints and a job queue.",
    "VERSION": "0.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,  # else each text is followed by a list of the values
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "COMPONENT_SPLIT_REQUEST": True,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "inference.api.idempotent.schema_hook",
        "models_registry.api.schema.schema_hook",
        "inference.api.ollama.schemas.schema_hook",  # after the hooks that add errors in OpenAI's shape
    ],
    # Enums of equal field names need names of their own.
    "ENUM_NAME_OVERRIDES": {
        "BatchEndpointEnum": ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"],
        "JobEndpointEnum": ["completion", "chat"],
    },
}
