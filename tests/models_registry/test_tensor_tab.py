"""The tensors' tab: a list, a tree, one that is open, and its figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client

from models_registry import services
from models_registry.tensor_tab import BAR_HEIGHT, bars

pytestmark = pytest.mark.django_db


@pytest.fixture
def address(browser: Client, hybrid: Path) -> str:
    return f"/models/{services.checkpoint_register(path=hybrid).pk}/?tab=tensors"


def router(browser: Client, address: str) -> str:
    return browser.get(f"{address}&q=router").content.decode().split('<a id="tensor-')[1].split('"')[0]


def test_a_tensor_opens_with_its_place_and_its_use(browser: Client, address: str) -> None:
    name = router(browser, address)
    text = browser.get(f"{address}&q=router&tensor={name}").content.decode()
    assert 'aria-expanded="true"' in text and "Bytes of the file" in text and "layers.1.channel_mixer" in text
    assert "Read its values" in text and "Standard deviation" not in text
    assert 'id="open-tensor"' not in browser.get(f"{address}&tensor=%3Cscript%3E").content.decode()


def test_its_values_are_read_on_demand(browser: Client, address: str) -> None:
    name = router(browser, address)
    text = browser.get(f"{address}&q=router&tensor={name}&figures=1").content.decode()
    assert "Standard deviation" in text and text.count('<rect class="bar"') == 48
    assert "values were read" in text and " style=" not in text


def test_a_layer_and_a_group_filter(browser: Client, address: str) -> None:
    layer = browser.get(f"{address}&layer=1").content.decode()
    assert "Layer 1 only" in layer and "layers.0." not in layer.split('id="tensor-region"')[1]
    tree = browser.get(f"{address}&prefix=.").content.decode()
    assert 'id="groups"' in tree
    group = tree.split('id="group-')[1].split('"')[0]
    inner = browser.get(f"{address}&prefix={group}").content.decode()
    assert f"<b>{group.rpartition('.')[2]}</b>" in inner


def test_bars_fill_their_height() -> None:
    found = bars({"low": 0.0, "high": 2.0, "bins": [1, 4], "below": 0, "above": 0})
    assert [(bar.low, bar.high, bar.height) for bar in found] == [(0.0, 1.0, BAR_HEIGHT / 4), (1.0, 2.0, BAR_HEIGHT)]
    assert bars(None) == []
