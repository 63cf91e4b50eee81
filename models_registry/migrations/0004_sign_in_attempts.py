"""Add the table of attempts to sign in."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('models_registry', '0003_load_permission'),
    ]

    operations = [
        migrations.CreateModel(
            name='SignInAttempt',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='SHA-256 of the user name.', max_length=64)),
                ('address', models.CharField(max_length=64)),
                ('created_at', models.DateTimeField(db_index=True)),
            ],
            options={
                'indexes': [models.Index(fields=['name'], name='sign_in_by_name'), models.Index(fields=['address'], name='sign_in_by_address')],
            },
        ),
    ]
