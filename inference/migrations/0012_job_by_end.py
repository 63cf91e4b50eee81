from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0011_job_claim_by_tenant")]

    operations = [
        migrations.AddIndex(
            "generationjob",
            models.Index(fields=["finished_at"], name="job_by_end", condition=models.Q(finished_at__isnull=False)),
        )
    ]
