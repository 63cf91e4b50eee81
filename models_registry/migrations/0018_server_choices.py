"""Add the row of what operators choose for all models."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('models_registry', '0017_upload_checks'),
    ]

    operations = [
        migrations.CreateModel(
            name='ServerChoices',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('makes_passports', models.BooleanField(default=True, help_text='Whether the server makes passports by itself.')),
                ('author_name', models.CharField(blank=True, default='', max_length=150)),
                ('updated_at', models.DateTimeField(auto_now=True)),
            ],
            options={
                'verbose_name_plural': 'server choices',
            },
        ),
    ]
