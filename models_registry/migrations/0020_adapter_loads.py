"""Add when an adapter was last loaded ahead; of those that are pinned, when they were registered."""

from django.db import migrations, models


def fill_in(apps, schema_editor):
    apps.get_model("models_registry", "Adapter").objects.filter(is_pinned=True).update(loaded_at=models.F("created_at"))


class Migration(migrations.Migration):

    dependencies = [
        ('models_registry', '0019_adapter_pins'),
    ]

    operations = [
        migrations.AddField(
            model_name='adapter',
            name='loaded_at',
            field=models.DateTimeField(blank=True, help_text='Of the last load ahead that succeeded; empty: none has since it was unloaded.', null=True),
        ),
        migrations.RunPython(fill_in, migrations.RunPython.noop),
    ]
