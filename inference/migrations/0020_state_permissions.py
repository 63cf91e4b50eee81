"""Let operators look at saved states on the admin pages, and delete them."""

from django.db import migrations


def add_permissions(apps, schema_editor):
    """Create the permissions now: Django itself does so after all migrations only."""
    Group, Permission = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
    content_type, _ = apps.get_model("contenttypes", "ContentType").objects.get_or_create(
        app_label="inference", model="storedstate"
    )
    operators = Group.objects.filter(name="operator")
    for action in ("view", "delete"):
        permission, _ = Permission.objects.get_or_create(
            content_type=content_type,
            codename=f"{action}_storedstate",
            defaults={"name": f"Can {action} stored state"},
        )
        for operator in operators:
            operator.permissions.add(permission)


class Migration(migrations.Migration):
    dependencies = [("inference", "0019_saved_chats")]

    operations = [migrations.RunPython(add_permissions, migrations.RunPython.noop)]
