"""Add stage, bytes and rate of a pull."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('models_registry', '0015_quantisation_text'),
    ]

    operations = [
        migrations.AddField(
            model_name='pulljob',
            name='bytes_per_s',
            field=models.BigIntegerField(default=0, help_text='Over the network, lately; 0: nothing comes.'),
        ),
        migrations.AddField(
            model_name='pulljob',
            name='fetched_bytes',
            field=models.BigIntegerField(default=0, help_text='Of all files; what the cache had included.'),
        ),
        migrations.AddField(
            model_name='pulljob',
            name='size_bytes',
            field=models.BigIntegerField(default=0, help_text='Of all files; 0: not known yet.'),
        ),
        migrations.AddField(
            model_name='pulljob',
            name='stage',
            field=models.CharField(choices=[('fetching', 'fetching'), ('checking', 'checking the digest'), ('inspecting', 'inspecting'), ('registering', 'registering')], default='fetching', max_length=12),
        ),
    ]
