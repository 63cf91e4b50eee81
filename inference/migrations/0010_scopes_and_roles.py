"""Add the roles viewer, member and operator, a permission per scope, and the newer scopes to admin keys.

Keys with the scope ``admin`` list the newer scopes, which they include; other keys stay as they are and have none of
them. Staff accounts without groups and permissions become members.
"""

from django.db import migrations

SCOPES = ("generate", "models", "files", "lifecycle", "priority", "metrics", "admin")

_VIEWER = {
    "inference": ["scope_models"],
    "models_registry": ["view_checkpoint", "view_checkpointoverride", "view_modelalias", "view_aliasrevision"],
}
_MEMBER = {**_VIEWER, "inference": ["scope_models", "scope_generate", "scope_files"]}
_OPERATOR = {
    "inference": [
        *(f"scope_{name}" for name in SCOPES),
        *("view_batch", "view_batchschedule", "change_batchschedule", "view_generationjob", "view_storedfile"),
        *("view_usageday", "view_usagerecord", "view_webhookdelivery"),
    ],
    "models_registry": [
        *_VIEWER["models_registry"],
        *("load_checkpoint", "change_checkpoint", "delete_checkpoint", "add_upload", "view_upload", "view_uploadfile"),
    ],
}
ROLES = {"viewer": _VIEWER, "member": _MEMBER, "operator": _OPERATOR}


def create_roles(apps, schema_editor):
    """Create the groups with their permissions; Django itself creates permissions after all migrations only."""
    Group, Permission = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
    ContentType = apps.get_model("contenttypes", "ContentType")
    for role, by_app in ROLES.items():
        group, _ = Group.objects.get_or_create(name=role)
        for app, codenames in by_app.items():
            for codename in codenames:
                action, _, rest = codename.partition("_")
                model = "apikey" if action == "scope" else rest
                content_type, _ = ContentType.objects.get_or_create(app_label=app, model=model)
                what = apps.get_model(app, model)._meta.verbose_name
                name = f"Can use the scope {rest} with a session" if action == "scope" else f"Can {action} {what}"
                permission, _ = Permission.objects.get_or_create(
                    content_type=content_type, codename=codename, defaults={"name": name}
                )
                group.permissions.add(permission)


def give_accounts_a_role(apps, schema_editor):
    """Make members of staff that could use all pages without any permission."""
    User = apps.get_model("auth", "User")
    member = apps.get_model("auth", "Group").objects.get(name="member")
    for user in User.objects.filter(is_staff=True, is_superuser=False, groups=None, user_permissions=None):
        user.groups.add(member)


def list_newer_scopes(apps, schema_editor):
    """Write the newer scopes into the keys that include them already."""
    ApiKey = apps.get_model("inference", "ApiKey")
    for key in ApiKey.objects.iterator():
        if "admin" in key.scopes:
            key.scopes = sorted(SCOPES)
            key.save(update_fields=["scopes"])


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("models_registry", "0003_load_permission"),
        ("inference", "0009_usage_output"),
    ]

    operations = [
        migrations.AlterModelOptions(
            "apikey",
            {
                "ordering": ["-created_at"],
                "permissions": [(f"scope_{name}", f"Can use the scope {name} with a session") for name in SCOPES],
                "verbose_name": "API key",
            },
        ),
        migrations.RunPython(create_roles, migrations.RunPython.noop),
        migrations.RunPython(give_accounts_a_role, migrations.RunPython.noop),
        migrations.RunPython(list_newer_scopes, migrations.RunPython.noop),
    ]
