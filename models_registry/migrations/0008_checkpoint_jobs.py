"""Say of a quantisation's source what all jobs say of it; the database doesn't change."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('models_registry', '0007_override_source'),
    ]

    operations = [
        migrations.AlterField(
            model_name='quantisation',
            name='source',
            field=models.ForeignKey(help_text='What the job is on.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='%(class)ss', to='models_registry.checkpoint'),
        ),
    ]
