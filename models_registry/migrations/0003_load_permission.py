"""Add the permission to load and unload checkpoints."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("models_registry", "0002_model_aliases")]

    operations = [
        migrations.AlterModelOptions(
            "checkpoint",
            {"ordering": ["served_model_name"], "permissions": [("load_checkpoint", "Can load and unload checkpoint")]},
        )
    ]
