"""Serve what the form of a path on the server posts: the report of an inspection, or the registration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from django.shortcuts import redirect, render
from django.urls import reverse

from inference.errors import BlazrError
from models_registry.path_registration import checked_place, empty_form, overrides_of, register, report
from models_registry.tokenizer_sources import check_vocabulary
from models_registry.views import UploadPage

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


class PathPage(UploadPage):
    """What is found at a path, and its registration; a form posts both."""

    http_method_names = ("get", "head", "post")

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Lead to the form."""
        return redirect(f"{reverse('upload')}#by-path")

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Inspect, or register and lead to the model; a refusal stands in the form."""
        posted = request.POST
        by_path = empty_form()
        by_path |= {name: posted.get(name, "").strip() for name in ("path", "name")}
        status = 200
        try:
            by_path["overrides"] = overrides = overrides_of(posted)
            place = checked_place(by_path["path"])
            check_vocabulary(place, overrides)
            if "register" in posted:
                author = cast("Any", request.user)
                row = register(place, overrides=overrides, name=by_path["name"], author=author)
                return redirect("model", row.pk)
            by_path |= report(place, overrides, name=by_path["name"])
        except BlazrError as error:
            by_path["problem"] = error.message
            status = error.http_status
        by_path["set"] = [
            {"name": name, "value": json.dumps(value, ensure_ascii=False), "json": json.dumps({name: value})}
            for name, value in by_path["overrides"].items()
        ]
        context = {"section": self.section, **self.page_context(), "by_path": by_path}
        return render(request, self.template_name, context, status=status)
