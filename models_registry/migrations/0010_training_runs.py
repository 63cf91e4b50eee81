"""Add the tables of training runs, their steps and measurements."""

import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('models_registry', '0009_span_measurements'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='TrainingRun',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('name', models.CharField(help_text='The alias of its checkpoints.', max_length=96, unique=True)),
                ('directory', models.TextField(help_text='Absolute, without links.', unique=True)),
                ('state', models.CharField(choices=[('watching', 'watching'), ('missing', 'directory is missing'), ('stopped', 'stopped')], default='watching', max_length=12)),
                ('reason', models.TextField(blank=True, default='', help_text="Why it isn't looked at.")),
                ('prompts', models.JSONField(default=list, help_text='Texts that every checkpoint continues.')),
                ('max_tokens', models.PositiveIntegerField(help_text='Of a sample.')),
                ('temperature', models.FloatField(help_text='Of the samples.')),
                ('seed', models.BigIntegerField(help_text='Of the samples, the same for every checkpoint.')),
                ('text', models.TextField(help_text='Held-out text, of which the loss is measured.')),
                ('loss_tokens', models.PositiveIntegerField(help_text='Tokens of the text that are read.')),
                ('max_seconds', models.PositiveIntegerField(help_text='Time of the process that measures a checkpoint.')),
                ('looked_at', models.DateTimeField(blank=True, help_text='Last look at the directory.', null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('owner', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-created_at'],
            },
        ),
        migrations.CreateModel(
            name='RunStep',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='Of the file or directory.', max_length=255)),
                ('number', models.BigIntegerField(help_text='Training steps; null: the end.', null=True)),
                ('state', models.CharField(choices=[('incomplete', 'not complete yet'), ('registered', 'registered'), ('refused', 'refused')], default='incomplete', max_length=12)),
                ('reason', models.TextField(blank=True, default='', help_text="Why it isn't complete, or was refused.")),
                ('everything', models.CharField(help_text='Digest of all files at the last look.', max_length=64)),
                ('seen_at', models.DateTimeField(help_text='When that digest was seen first.')),
                ('read', models.CharField(blank=True, default='', help_text='Digest of the files that were registered or refused.', max_length=64)),
                ('revision', models.PositiveIntegerField(blank=True, help_text="Of the run's alias.", null=True)),
                ('loss', models.FloatField(blank=True, help_text='Mean over the held-out text, in nats per token.', null=True)),
                ('num_tokens', models.PositiveIntegerField(default=0, help_text='Predictions that the loss is a mean of.')),
                ('samples', models.JSONField(default=list, help_text='For each prompt what the checkpoint made of it.')),
                ('measured_at', models.DateTimeField(blank=True, null=True)),
                ('num_failures', models.PositiveSmallIntegerField(default=0, help_text='Of measurements.')),
                ('problem', models.TextField(blank=True, default='', help_text='Why the last measurement failed.')),
                ('checkpoint', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='models_registry.checkpoint')),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='steps', to='models_registry.trainingrun')),
            ],
            options={
                'ordering': [models.OrderBy(models.F('number'), nulls_last=True), 'name'],
            },
        ),
        migrations.CreateModel(
            name='StepMeasurement',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('source_name', models.CharField(help_text='Outlives the source.', max_length=96)),
                ('state', models.CharField(choices=[('running', 'running'), ('done', 'done'), ('failed', 'failed'), ('cancelled', 'cancelled')], default='running', max_length=12)),
                ('progress', models.FloatField(default=0.0, help_text='Share of the work that is done.')),
                ('stage', models.CharField(blank=True, default='', help_text='What is being done.', max_length=200)),
                ('reason', models.TextField(blank=True, default='', help_text='Why it failed, or who cancelled it.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('active_at', models.DateTimeField(help_text='Last sign of life.')),
                ('owner', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('source', models.ForeignKey(help_text='What the job is on.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='%(class)ss', to='models_registry.checkpoint')),
                ('step', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='measurements', to='models_registry.runstep')),
            ],
            options={
                'ordering': ['-created_at'],
                'abstract': False,
                'constraints': [models.UniqueConstraint(condition=models.Q(('state', 'running')), fields=('state',), name='one_running_stepmeasurement')],
            },
        ),
        migrations.AddConstraint(
            model_name='runstep',
            constraint=models.UniqueConstraint(fields=('run', 'name'), name='run_step_name'),
        ),
    ]
