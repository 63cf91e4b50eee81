"""Rows of the registry for tests that need no files behind them."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.db.models import Model

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def make_checkpoint(name: str = "tiny", *, kind: str = "builtin", template: str | None = TEMPLATE, **columns: Any):
    """A checkpoint's row, as the registry would write it; there are no files behind it."""
    from inference.values.tokenizer_spec import TokenizerSpec
    from models_registry.models import Checkpoint

    vocabulary = {"builtin": "cl100k_base"}.get(kind)
    tokenizer = TokenizerSpec(kind, 100331, name=vocabulary, chat_template=template)  # type: ignore[arg-type]
    values = {
        "served_model_name": name,
        "path": f"/nowhere/{name}",
        "directory": "/nowhere",
        "format": "oxidizr",
        "model_type": "oxidizr",
        "architecture": "2 × mamba2",
        "dtype": "float32",
        "vocab_size": 100331,
        "max_position_embeddings": 4096,
        "inspection": {"tokenizer": tokenizer.to_dict()},
    }
    return Checkpoint.objects.create(**values | columns)


def make_adapter(base: Any, name: str = "sql", **columns: Any):
    """A LoRA adapter's row; there are no files behind it."""
    from models_registry.models import Adapter

    values = {"path": f"/nowhere/{name}", "digest": "0" * 64, "rank": 4, "num_values": 8, "size_bytes": 32}
    return Adapter.objects.create(base=base, name=name, **values | columns)


def damage(row: Model, column: str, value: str = "damaged") -> None:
    """Store a value that the column's type can't hold, as SQLite lets anybody; the test is skipped elsewhere.

    SQLite checks that JSON columns hold JSON, which a damaged page of the file doesn't ask for.
    """
    if connection.vendor != "sqlite":
        pytest.skip("only SQLite takes values that its columns can't hold")
    key = row._meta.pk
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA ignore_check_constraints = ON")
        cursor.execute(
            f'UPDATE "{row._meta.db_table}" SET "{column}" = %s WHERE "{key.column}" = %s',
            [value, key.get_db_prep_value(row.pk, connection)],
        )
        cursor.execute("PRAGMA ignore_check_constraints = OFF")
