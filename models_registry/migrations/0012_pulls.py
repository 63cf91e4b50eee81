"""Add the table of pulls."""

import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('models_registry', '0011_passports'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='PullJob',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('origin', models.CharField(help_text='ORG/NAME, or pypi:NAME.', max_length=200)),
                ('served_model_name', models.CharField(blank=True, default='', help_text='Empty: NAME.', max_length=96)),
                ('state', models.CharField(choices=[('running', 'running'), ('done', 'done'), ('failed', 'failed'), ('cancelled', 'cancelled')], default='running', max_length=12)),
                ('file', models.CharField(blank=True, default='', help_text='What is being downloaded.', max_length=200)),
                ('done_bytes', models.BigIntegerField(default=0, help_text='Of that file.')),
                ('total_bytes', models.BigIntegerField(default=0, help_text='Of that file.')),
                ('reason', models.TextField(blank=True, default='', help_text='Why it failed.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('active_at', models.DateTimeField(help_text='Last sign of life.')),
                ('checkpoint', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='models_registry.checkpoint')),
                ('owner', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-created_at'],
            },
        ),
    ]
