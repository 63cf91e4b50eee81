from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0016_batch_from_here")]

    operations = [
        migrations.AddIndex(
            "generationjob",
            models.Index(
                fields=["attempts"], name="job_suspects", condition=models.Q(state="queued", attempts__gte=2)
            ),
        ),
    ]
