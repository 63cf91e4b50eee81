"""Add the table of LoRA adapters."""

import uuid

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("models_registry", "0012_pulls"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Adapter",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=96)),
                ("path", models.TextField(help_text="PEFT's directory or its safetensors file, absolute.")),
                ("digest", models.CharField(help_text="SHA-256 of the files' content.", max_length=64)),
                ("rank", models.PositiveIntegerField(help_text="The greatest of its matrices.")),
                ("targets", models.JSONField(default=list, help_text="Last parts of the changed modules' names.")),
                ("num_values", models.BigIntegerField(help_text="Numbers that it keeps in memory.")),
                ("size_bytes", models.BigIntegerField(help_text="Of its tensors in the file.")),
                (
                    "state",
                    models.CharField(
                        choices=[("available", "available"), ("missing", "files are missing")],
                        default="available",
                        max_length=12,
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "base",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="adapters",
                        to="models_registry.checkpoint",
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
                "constraints": [models.UniqueConstraint(fields=("base", "name"), name="adapter_name")],
            },
        ),
    ]
