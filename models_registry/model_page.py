"""Serve the page of one model: a head with its live state, and tabs that each read what they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse

from inference.errors import NotFound
from inference.models.readable_rows import readable_rows
from inference.values.memory_span import MAX_TOKENS
from inference.values.tokenizer_spec import MAX_TEMPLATE_CHARS
from models_registry import live, selectors
from models_registry.adapter_names import MAX_ADAPTER_CHARS
from models_registry.adapters import adapter_list, aliases_by_adapter
from models_registry.aliases import alias_names
from models_registry.api.adapter_views import adapter_values
from models_registry.api.passport_views import passport_context
from models_registry.api.quantisation_views import quantisation_list
from models_registry.api.serializers import CheckpointSerializer, OverrideSerializer
from models_registry.api.span_views import measurement_rows
from models_registry.api.views import checkpoint_inspection
from models_registry.curves import read_curve
from models_registry.default_text import DEFAULT_TEXT
from models_registry.detection.describe import describe
from models_registry.detection.facts import CHAT_TEMPLATE
from models_registry.layer_ribbon import layer_ribbon
from models_registry.layer_tab import layers_context
from models_registry.layer_words import layer_rows, legend
from models_registry.memory_tab import fit_context
from models_registry.models import Checkpoint
from models_registry.quantisations import MAX_KL, default_name, is_quantisable
from models_registry.revision_tab import changes_context, revisions_context
from models_registry.settings_schema import MODEL_SETTINGS, shown
from models_registry.span_measurements import (
    DEFAULT_SECONDS,
    DEFAULT_TOKENS,
    MAX_SECONDS,
    MAX_TEXT_BYTES,
    MIN_TOKENS,
    reads_text,
)
from models_registry.tensor_tab import tensors_context
from models_registry.views import StaffPage, with_tokenizer_sources

TABS = {
    "overview": "Overview",
    "layers": "Layers",
    "tensors": "Tensors",
    "revisions": "Revisions",
    "memory": "Memory",
    "template": "Template",
    "facts": "Facts",
    "adapters": "Adapters",
    "passport": "Passport",
    "settings": "Settings",
}
TABS_ELSEWHERE = {
    "tokenizer": ("Tokenizer", "model-tokenizer", "template"),
    "usage": ("Usage", "model-usage", "passport"),
}
"""Tabs that a page of their own serves: the label, the page's name, and the tab behind it. One whose page isn't there
is left out."""
SCRIPTS = {
    "overview": ("registry/layers.js", "registry/quantise.js"),
    "memory": ("registry/fit.js", "registry/spans.js"),
    "template": ("registry/chat_template.js",),
    "facts": ("registry/model_facts.js",),
    "adapters": ("registry/adapters.js",),
    "passport": ("registry/passport.js",),
    "settings": ("registry/model_settings.js",),
}
CHANGES = ("models_registry.change_checkpoint", "models_registry.delete_checkpoint")
"""Permissions for what the settings tab offers; without any of them it isn't there."""
SPAN_LIMITS = {
    "text": DEFAULT_TEXT,
    "max_text_bytes": MAX_TEXT_BYTES,
    "min_tokens": MIN_TOKENS,
    "max_tokens": MAX_TOKENS,
    "tokens": DEFAULT_TOKENS,
    "max_seconds": MAX_SECONDS,
    "seconds": DEFAULT_SECONDS,
}


class ModelPage(StaffPage):
    """One checkpoint."""

    template_name = "registry/model.html"
    section = "models"
    permission_required = "models_registry.view_checkpoint"
    regions: ClassVar[dict[str, tuple[str, str]]] = {
        "tensor-region": ("registry/model/_tensors.html", "_tensors_tab"),
        "ribbon-region": ("registry/model/_ribbon.html", "_layers_tab"),
        "fit-region": ("registry/model/_fit.html", "_fit"),
        "changes-region": ("registry/model/_changes.html", "_changes"),
    }
    """Elements that are drawn alone, by id: their template, and the method that returns its values."""

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Serve the page, or one of its regions alone to what asks for it."""
        region = self.regions.get(request.headers.get("HX-Target", ""))
        if region is None:
            return super().get(request, **kwargs)
        template, values = region
        try:
            context = getattr(self, values)(selectors.checkpoint_get(kwargs["checkpoint_id"]))
        except NotFound as error:
            raise Http404(error.message) from None
        return render(request, template, context)

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the head's values, and those of the tab that the address names."""
        checkpoint = selectors.checkpoint_get(kwargs["checkpoint_id"])
        inspection = checkpoint_inspection(checkpoint)
        tab = self.current_tab()
        (with_state,) = live.with_live([checkpoint], live.look())
        row = CheckpointSerializer(with_state).data
        is_available = checkpoint.state == "available"
        values: dict[str, Any] = getattr(self, f"_{tab}_tab")(checkpoint)
        return {
            "checkpoint": checkpoint,
            "row": row,
            "held": row["live"]["status"] in ("ready", "loading"),
            "ribbon": layer_ribbon(inspection.spec.layers),
            "percent": round(100 * row["live"]["progress"]),
            "departure": _departure(row["live"]),
            "warnings": inspection.warnings,
            "can_quantise": is_available and is_quantisable(inspection),
            "can_measure": is_available,
            "tab": tab,
            "tabs": self._tabs(checkpoint),
            "base": self.base(checkpoint),
            "template_of_tab": f"registry/model/{tab}.html",
            "scripts": SCRIPTS.get(tab, ()),
            **values,
            "page_data": {
                **{name: row[name] for name in ("id", "served_model_name", "size_bytes", "state")},
                "owns_files": checkpoint.owns_files,
                **values.get("page_data", {}),
            },
        }

    @property
    def is_head(self) -> bool:
        """Whether a live part of the head is drawn anew, which needs nothing of the tab."""
        return self.request.headers.get("HX-Target") in ("live-words", "live-memory", "live-notes")

    @property
    def tab_query(self) -> QueryDict:
        """The address's query; empty for the live parts of the head, which are drawn anew without the tab's work."""
        return QueryDict() if self.is_head else self.request.GET

    def current_tab(self) -> str:
        """Return the name of the tab that is shown."""
        tab = self.request.GET.get("tab", "overview")
        return tab if tab in self.own_tabs() else "overview"

    def own_tabs(self) -> list[str]:
        """Return the names of the tabs of this page that the account may use."""
        can_change = any(map(self.request.user.has_perm, CHANGES))
        return [name for name in TABS if name != "settings" or can_change]

    def base(self, checkpoint: Checkpoint) -> str:
        """Return what stands before ``?tab=`` in links to the other tabs."""
        return ""

    def _tabs(self, checkpoint: Checkpoint) -> list[tuple[str, str, str]]:
        """Return name, label and address of each tab."""
        base = self.base(checkpoint)
        found = [(name, TABS[name], f"{base}?tab={name}") for name in self.own_tabs()]
        for name, (label, page, before) in TABS_ELSEWHERE.items():
            try:
                address = reverse(page, args=[checkpoint.pk])
            except NoReverseMatch:
                continue
            found.insert([item[0] for item in found].index(before), (name, label, address))
        return found

    def _overview_tab(self, checkpoint: Checkpoint) -> dict[str, Any]:
        inspection = checkpoint_inspection(checkpoint)
        description = describe(inspection)
        return {
            **_layers(description),
            "description": description,
            "reads_text": reads_text(inspection),
            "max_text_bytes": MAX_TEXT_BYTES,
            "curve": read_curve(Path(checkpoint.directory)),
            "quantisations": quantisation_list(checkpoint),
            "quantised_name": default_name(checkpoint),
            "max_kl": MAX_KL,
        }

    def _layers_tab(self, checkpoint: Checkpoint) -> dict[str, Any]:
        inspection = checkpoint_inspection(checkpoint)
        shown = _layers(describe(inspection))
        return {**shown, **layers_context(checkpoint, inspection.spec, shown["layers"], self.tab_query)}

    def _revisions_tab(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return revisions_context(checkpoint, self.tab_query)

    def _changes(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return changes_context(checkpoint, self.request.GET)

    def _adapters_tab(self, checkpoint: Checkpoint) -> dict[str, Any]:
        rows, aliases = adapter_list(checkpoint), aliases_by_adapter(checkpoint)
        values = zip(rows, adapter_values(rows), strict=True)
        shown = [{**item, "aliases": aliases.get(row.pk, [])} for row, item in values]
        return {"adapters": shown, "max_name": MAX_ADAPTER_CHARS, "alias_names": alias_names()}

    def _passport_tab(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return {**passport_context(checkpoint), "alias_names": alias_names()}

    def _tensors_tab(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return tensors_context(checkpoint, self.tab_query)

    def _fit(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return fit_context(checkpoint, self.request.GET)

    def _memory_tab(self, checkpoint: Checkpoint) -> dict[str, Any]:
        measurements = measurement_rows(checkpoint)
        return {
            **self._fit(checkpoint),
            "measurements": measurements,
            "newest_result": next((row.pk for row in measurements if row.state == "done"), None),
            "reads_text": reads_text(checkpoint_inspection(checkpoint)),
            "span_limits": SPAN_LIMITS,
        }

    def _template_tab(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return the chat template in force, the model's own, and who set another one."""
        tokenizer = checkpoint_inspection(checkpoint).tokenizer
        in_force = checkpoint.overrides.filter(fact=CHAT_TEMPLATE, cleared_at__isnull=True)
        set_by = next(iter(readable_rows(in_force, 1)), None)
        return {
            "max_template_chars": MAX_TEMPLATE_CHARS,
            "template": {
                "source": tokenizer.chat_template,
                "origin": tokenizer.chat_template_origin,
                "own": tokenizer.own_chat_template,
                "set_by": set_by and OverrideSerializer(set_by).data,
            },
        }

    def _facts_tab(self, checkpoint: Checkpoint) -> dict[str, Any]:
        description = describe(checkpoint_inspection(checkpoint))
        with_tokenizer_sources(description["overridable"], besides=checkpoint)
        overrides = OverrideSerializer(readable_rows(selectors.override_history(checkpoint)), many=True).data
        in_force = {row["fact"] for row in overrides if row["cleared_at"] is None}
        return {
            "description": description,
            "overrides": overrides,
            "facts": [{**fact, "overridden": fact["name"] in in_force} for fact in description["facts"]],
            "page_data": {"overridable": description["overridable"], "facts": description["facts"]},
        }

    def _settings_tab(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return {
            "model_settings": [
                {"schema": setting, "value": shown(setting, checkpoint.settings.get(setting.name))}
                for setting in MODEL_SETTINGS
            ]
        }


def _layers(description: dict[str, Any]) -> dict[str, Any]:
    rows = layer_rows(description["layers"])
    names = ("number", "title", "pairs", "num_parameters")
    return {
        "layers": rows,
        "legend": legend(rows),
        "page_data": {"layers": [{name: row[name] for name in names} for row in rows]},
    }


def _departure(seen: dict[str, Any]) -> dict[str, Any] | None:
    """Return why and when the model went the last time; None while it is there, or if no worker remembers."""
    if not seen["departures"] or seen["status"] in ("ready", "loading"):
        return None
    last = seen["departures"][-1]
    stayed = f" after {last['resident_s']:.0f} s in memory" if last["resident_s"] else ""
    return {"words": f"Unloaded{stayed}: {last['reason']}", "at": last["at"]}
