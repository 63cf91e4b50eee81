from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("inference", "0008_batch_token_details")]

    operations = [migrations.RenameField("usagerecord", "answer", "output")]
