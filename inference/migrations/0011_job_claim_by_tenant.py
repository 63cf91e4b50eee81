"""Add the index of queued jobs by tenant."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0010_scopes_and_roles")]

    operations = [
        migrations.AddIndex(
            "generationjob",
            models.Index(
                fields=["tenant", "priority", "id"], name="job_claim_by_tenant", condition=models.Q(state="queued")
            ),
        )
    ]
