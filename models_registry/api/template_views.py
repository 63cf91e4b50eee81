"""Serve the check of chat templates: problems and a sample conversation, before a template is set."""

from __future__ import annotations

import uuid
from functools import partial

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from models_registry import selectors
from models_registry.api import serializers as shapes
from models_registry.api.views import CHANGE, StaffView, checkpoint_inspection, valid_values
from models_registry.chat_templates import template_check

_template_schema = partial(extend_schema, tags=["registry"], responses=shapes.TemplateCheckSerializer)


class TemplatePreviewView(StaffView):
    """A chat template that may be set."""

    permissions = {"POST": CHANGE}

    @_template_schema(operation_id="checkpoint_template_preview", request=shapes.TemplateSerializer)
    def post(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Return the problems of a template and a sample conversation; sets nothing."""
        values = valid_values(shapes.TemplateSerializer(data=request.data))
        tokenizer = checkpoint_inspection(selectors.checkpoint_get(checkpoint_id)).tokenizer
        check = template_check(values["template"], dict(tokenizer.special_tokens))
        return Response(shapes.TemplateCheckSerializer(check.to_dict()).data)
