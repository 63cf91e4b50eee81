from django.db import migrations, models

KEYED = {"batch": "batch_request_key", "storedfile": "file_request_key"}
"""Models whose rows keep the idempotency key of their request, and their constraints."""


class Migration(migrations.Migration):
    dependencies = [("inference", "0013_job_bytes")]

    operations = [
        *(
            migrations.AddField(model, "request_key", models.CharField(max_length=64, null=True, blank=True))
            for model in KEYED
        ),
        *(
            migrations.AddField(
                model,
                "request_digest",
                models.CharField(max_length=64, blank=True, default="", help_text="Of the request with the key."),
            )
            for model in KEYED
        ),
        *(
            migrations.AddConstraint(
                model,
                models.UniqueConstraint(
                    fields=["tenant", "request_key"], condition=models.Q(request_key__isnull=False), name=name
                ),
            )
            for model, name in KEYED.items()
        ),
    ]
