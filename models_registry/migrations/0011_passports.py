"""Add the table of passports, and what an alias demands."""

import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('models_registry', '0010_training_runs'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='modelalias',
            name='demands_passport',
            field=models.BooleanField(default=False, help_text='Only a checkpoint with a passport can be promoted to it.'),
        ),
        migrations.CreateModel(
            name='Passport',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('source_name', models.CharField(help_text='Outlives the source.', max_length=96)),
                ('state', models.CharField(choices=[('running', 'running'), ('done', 'done'), ('failed', 'failed'), ('cancelled', 'cancelled')], default='running', max_length=12)),
                ('progress', models.FloatField(default=0.0, help_text='Share of the work that is done.')),
                ('stage', models.CharField(blank=True, default='', help_text='What is being done.', max_length=200)),
                ('reason', models.TextField(blank=True, default='', help_text='Why it failed, or who cancelled it.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('active_at', models.DateTimeField(help_text='Last sign of life.')),
                ('identity', models.CharField(help_text='Digest of the files and facts that were checked.', max_length=64)),
                ('is_automatic', models.BooleanField(default=False, help_text='Whether the server started it by itself.')),
                ('entries', models.JSONField(default=list, help_text='For each check its name, state, words and figures.')),
                ('owner', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('source', models.ForeignKey(help_text='What the job is on.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='%(class)ss', to='models_registry.checkpoint')),
            ],
            options={
                'ordering': ['-created_at'],
                'abstract': False,
                'constraints': [models.UniqueConstraint(condition=models.Q(('state', 'running')), fields=('state',), name='one_running_passport')],
            },
        ),
    ]
