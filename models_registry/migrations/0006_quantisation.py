"""Add the table of quantisations."""

import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ('models_registry', '0005_upload_overrides'),
    ]

    operations = [
        migrations.CreateModel(
            name='Quantisation',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('source_name', models.CharField(help_text='Outlives the source.', max_length=96)),
                ('served_model_name', models.CharField(help_text='Of the result.', max_length=96)),
                ('max_bytes', models.BigIntegerField(blank=True, help_text="Limit of the weights' file.", null=True)),
                ('max_kl', models.FloatField(blank=True, help_text='Limit of the mean KL divergence, in nats.', null=True)),
                ('state', models.CharField(choices=[('running', 'running'), ('done', 'done'), ('failed', 'failed'), ('cancelled', 'cancelled')], default='running', max_length=12)),
                ('progress', models.FloatField(default=0.0, help_text='Share of the work that is done.')),
                ('stage', models.CharField(blank=True, default='', help_text='What is being done.', max_length=200)),
                ('reason', models.TextField(blank=True, default='', help_text='Why it failed, or who cancelled it.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('active_at', models.DateTimeField(help_text='Last sign of life.')),
                ('checkpoint', models.ForeignKey(blank=True, help_text='The result.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='models_registry.checkpoint')),
                ('owner', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('source', models.ForeignKey(help_text='What is quantised.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='quantisations', to='models_registry.checkpoint')),
            ],
            options={
                'ordering': ['-created_at'],
                'constraints': [models.UniqueConstraint(condition=models.Q(('state', 'running')), fields=('state',), name='one_running_quantisation')],
            },
        ),
    ]
