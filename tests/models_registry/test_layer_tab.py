"""The layers' tab: the ribbon and the tensors of one layer."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client

from inference.modelling.operations import LayerMacs
from models_registry import services
from models_registry.layer_tab import MEASURES, RIBBON_WIDTH, Compute, segments

LAYERS = [
    {"number": number, "num_parameters": 10 * number, "state_bytes_per_token": 0, "state_bytes_per_sequence": 5}
    for number in range(3)
]
COMPUTE = Compute(100, [LayerMacs(projections=10), LayerMacs(attention=10), LayerMacs(experts=15, recurrence=5)], 60)


@pytest.mark.parametrize("by", MEASURES)
def test_the_ribbon_is_filled_whatever_it_measures(by: str) -> None:
    found = segments(LAYERS, {0: 1, 1: 1, 2: 2}, by, COMPUTE)
    assert [segment.layer["number"] for segment in found] == [0, 1, 2]
    assert found[0].x == 0 and found[-1].x + found[-1].width == pytest.approx(RIBBON_WIDTH, abs=3)
    assert all(segment.width > 0 for segment in found)


def test_widths_are_shares() -> None:
    one, two, three = segments(LAYERS, {0: 1, 1: 1, 2: 2}, "bytes", COMPUTE)
    assert one.width == two.width == pytest.approx(three.width / 2, abs=0.1)
    assert segments(LAYERS, {}, "token", COMPUTE)[0].width == pytest.approx(RIBBON_WIDTH / 3, abs=2)


def test_compute_is_a_share_of_the_whole_pass() -> None:
    found = segments(LAYERS, {}, "compute", COMPUTE)
    assert found[2].width == pytest.approx(2 * found[0].width, abs=0.1)
    assert found[0].words == ", 10 multiply-adds, 10.0% of a token's"
    assert COMPUTE.words(2) == "20 (20.0%): experts 15, recurrence 5"


@pytest.mark.django_db
def test_compute_depends_on_the_context_of_the_address(browser: Client, hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    address = f"/models/{row.pk}/?tab=layers&by=compute"
    default = browser.get(address).content.decode()
    assert 'name="context" type="number" min="1" max="128" value="128"' in default
    short = browser.get(f"{address}&context=1&layer=2").content.decode()
    assert 'value="1"' in short and "sees 1</span>" in short and "attention 32" in short
    assert "&amp;context=1&amp;by=bytes" in short and "&amp;context=" not in default
    odd = browser.get(f"{address}&context=%3Cb%3E").content.decode()
    assert 'value="128"' in odd and "<b>" not in odd.split('id="ribbon-region"')[1].split("Ribbon")[0]


@pytest.mark.django_db
def test_a_layer_is_chosen_by_address(browser: Client, hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    address = f"/models/{row.pk}/?tab=layers"
    text = browser.get(address).content.decode()
    assert text.count('<a id="ribbon-') == 3 and "Choose a layer" in text and " style=" not in text
    text = browser.get(f"{address}&by=bytes&zoom=4&layer=1").content.decode()
    assert 'width="400%"' in text and "Layer 1: " in text.split("chosen-title")[2]
    tensors = text.split('id="tensor-region"')[1].split("</table>")[0]
    assert "router" in tensors and "layers.0." not in tensors
    for odd in ("&layer=99", "&by=x&zoom=3", "&layer=-1"):
        assert "Choose a layer" in browser.get(address + odd).content.decode()
    region = browser.get(f"{address}&layer=1", headers={"HX-Target": "ribbon-region"}).content.decode()
    assert region.startswith('<div id="ribbon-region"')
