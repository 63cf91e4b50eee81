"""``blazr generate`` with the demo model; states are in ``test_state``."""

from __future__ import annotations

import pytest

from blazr_site.cli import main

DEMO = ("generate", "--model", "demo", "--cpu", "--temperature", "0", "--max-tokens", "8")


def test_text_goes_to_the_output_and_figures_beside_it(capsys) -> None:
    assert main([*DEMO, "--prompt", "The statement"]) == 0
    found = capsys.readouterr()
    assert found.out.startswith("The statement") and len(found.out) > len("The statement\n")
    assert "8 generated" in found.err and "tokens/s" in found.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--prompt or --state is needed"),
        (("--prompt", "x", "--merged"), "--merged merges an adapter"),
        (("--prompt", "x", "--adapter", "/nowhere"), "nowhere"),
    ],
)
def test_one_line_says_what_is_missing(capsys, options: tuple[str, ...], message: str) -> None:
    assert main([*DEMO, *options]) != 0
    assert message in capsys.readouterr().err
