"""Add kinds of adapters, and let aliases mean an adapter."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("models_registry", "0013_adapters")]

    operations = [
        migrations.AddField(
            model_name="adapter",
            name="kind",
            field=models.CharField(
                choices=[("lora", "LoRA"), ("xlora", "X-LoRA")], default="lora", max_length=8
            ),
        ),
        migrations.AddField(
            model_name="aliasrevision",
            name="adapter",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="models_registry.adapter",
            ),
        ),
        migrations.AddField(
            model_name="aliasrevision",
            name="adapter_name",
            field=models.CharField(
                blank=True, default="", help_text="Outlives the adapter; empty: it meant none.", max_length=96
            ),
        ),
    ]
