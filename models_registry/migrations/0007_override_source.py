"""Add the checkpoint that an override names, which can't be deleted as long as the override is in force."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('models_registry', '0006_quantisation'),
    ]

    operations = [
        migrations.AddField(
            model_name='checkpointoverride',
            name='source',
            field=models.ForeignKey(blank=True, help_text='The checkpoint that value names, as long as the override is in force.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='borrowers', to='models_registry.checkpoint'),
        ),
    ]
