"""Add which adapters were loaded ahead of their requests."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('models_registry', '0018_server_choices'),
    ]

    operations = [
        migrations.AddField(
            model_name='adapter',
            name='is_pinned',
            field=models.BooleanField(default=False, help_text="It was loaded ahead of its requests; until it is unloaded, its base's loads load it."),
        ),
    ]
