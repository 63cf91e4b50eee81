"""Check that the name of a complete upload is free; an upload whose name was taken meanwhile waits for another one."""

from __future__ import annotations

from django.utils import timezone

from inference.errors import Conflict
from models_registry.models import Upload
from models_registry.names import check_name
from models_registry.services import free_name, name_taken

NAME_TAKEN = "its name is taken; finish it under another one"


def upload_name_check(upload: Upload, served_model_name: str = "") -> None:
    """Check the name of a complete upload, which gets ``served_model_name`` first, if one is given.

    Raises:
        InvalidRequest: The name isn't legal.
        Conflict: The name is taken, and the upload waits for another one; or it is being checked under its own name.
    """
    waiting = Upload.objects.filter(pk=upload.pk, state=Upload.State.RECEIVING)
    if served_model_name not in ("", upload.served_model_name):
        if not waiting.update(served_model_name=check_name(served_model_name)):
            raise Conflict(
                f"the upload is being checked as {upload.served_model_name!r}; rename the model afterwards.",
                param="served_model_name",
            )
        upload.served_model_name = served_model_name
    name = upload.served_model_name
    if upload.state == Upload.State.RECEIVING and free_name(name) != name:
        wait_for_name(upload)
        raise Conflict(
            f"{name_taken(name).message} The upload keeps its bytes; finish it under that name.",
            param="served_model_name",
        )


def wait_for_name(upload: Upload) -> int:
    """Let an upload keep its bytes until it is finished under another name; returns 0 if its state has changed."""
    return Upload.objects.filter(pk=upload.pk, state=upload.state).update(
        state=Upload.State.RECEIVING,
        stage=NAME_TAKEN,
        num_checks=0,  # it isn't checked again by itself
        active_at=timezone.now(),
    )
