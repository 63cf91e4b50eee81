"""Print the OpenAPI document and its page, as a process beside the server that asked for them."""

# Django must be ready before modules that use models are imported.
# ruff: noqa: E402

from __future__ import annotations

import sys

from blazr_site.process_environment import use_settings

use_settings()

import django

django.setup()

import orjson

from blazr_site.api_docs import docs_page, openapi_document


def main() -> None:
    """Print a JSON object of two texts: the document as ``openapi``, in JSON, and the page as ``page``."""
    texts = {"openapi": orjson.dumps(openapi_document()).decode(), "page": docs_page()}
    sys.stdout.buffer.write(orjson.dumps(texts))


if __name__ == "__main__":
    main()
