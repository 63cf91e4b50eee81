"""The demo network in training: causal, all parameters learn, its configuration names its layers."""

from __future__ import annotations

import pytest
import torch

from inference.demo.network import DemoConfig, DemoNetwork

TINY = DemoConfig(vocab_size=300, hidden_size=40, mamba_heads=5, mamba_head_dim=16, layers=("mamba2", "mla", "gqa"))


@pytest.fixture
def network() -> DemoNetwork:
    torch.manual_seed(0)
    return DemoNetwork(TINY)


def test_no_token_sees_a_later_one(network):
    ids = torch.randint(0, 300, (1, 12))
    changed = ids.clone()
    changed[0, 8:] = 7
    with torch.inference_mode():
        before, after = network.eval()(ids), network.eval()(changed)
    # Float32; the scan sums the earlier tokens in the same order.
    torch.testing.assert_close(before[:, :8], after[:, :8], rtol=1e-5, atol=1e-5)
    assert not torch.equal(before[:, 8:], after[:, 8:])


def test_every_parameter_gets_a_gradient(network):
    logits = network(torch.randint(0, 300, (2, 16)))
    (logits.square().mean() + network.balance_loss()).backward()
    missing = [name for name, value in network.named_parameters() if value.requires_grad and value.grad is None]
    assert not missing


def test_the_configuration_has_what_the_loader_asks_for():
    config = TINY.to_json()
    assert config["vocab_size"] == 300
    assert config["hidden_size"] == 40
