from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0012_job_by_end")]

    operations = [
        migrations.AddField(
            "generationjob",
            "size_bytes",
            models.PositiveBigIntegerField(default=0, help_text="Of the plan, and of the result once it is stored."),
        ),
        migrations.AddIndex(
            "generationjob", models.Index(fields=["tenant", "size_bytes"], name="job_bytes_by_tenant")
        ),
    ]
