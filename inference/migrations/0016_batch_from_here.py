from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0015_response_bytes")]

    operations = [
        migrations.AddField(
            "batch",
            "is_from_here",
            models.BooleanField(
                default=False,
                help_text="Submitted from this machine without a key: lines may have such a caller's options.",
            ),
        ),
    ]
