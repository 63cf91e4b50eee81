from django.db import migrations, models
from django.db.models.functions import Length


def count_stored(apps, schema_editor):
    """Count what is stored already, in characters: most of it is ASCII."""
    rows = apps.get_model("inference", "StoredResponse").objects.all()
    rows.update(size_bytes=Length("body") + Length("input_items"))


class Migration(migrations.Migration):
    dependencies = [("inference", "0014_request_keys")]

    operations = [
        migrations.AddField(
            "storedresponse",
            "size_bytes",
            models.PositiveBigIntegerField(default=0, help_text="Of the body and the input items."),
        ),
        migrations.AddIndex(
            "storedresponse", models.Index(fields=["tenant", "size_bytes"], name="response_bytes_by_tenant")
        ),
        migrations.RunPython(count_stored, migrations.RunPython.noop),
        migrations.AlterField(
            "generationjob",
            "size_bytes",
            models.PositiveBigIntegerField(
                default=0, help_text="Of the plan; at the end of the result and the kept events, too."
            ),
        ),
    ]
