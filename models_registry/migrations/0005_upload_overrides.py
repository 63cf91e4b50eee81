"""Add the facts that an uploader sets."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('models_registry', '0004_sign_in_attempts'),
    ]

    operations = [
        migrations.AddField(
            model_name='upload',
            name='overrides',
            field=models.JSONField(blank=True, default=dict, help_text='Facts set by the uploader, by name.'),
        ),
    ]
