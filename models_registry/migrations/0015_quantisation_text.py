"""Add the text that a quantisation measures on."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("models_registry", "0014_adapter_kinds")]

    operations = [
        migrations.AddField(
            model_name="quantisation",
            name="text",
            field=models.TextField(
                blank=True, default="", help_text="What it measures on; empty: the default text."
            ),
        ),
    ]
