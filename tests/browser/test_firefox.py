"""The pages in Firefox, where one is installed: drawn without errors, in both widths, and used by keyboard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.firefox import MISSING, Firefox, firefox_binary
from tests.browser.test_pages import paths
from tests.live.conftest import LiveServer, wait_until

pytestmark = pytest.mark.browser
SIGN_IN = """(() => {
  document.querySelector("#id_username").value = "admin";
  document.querySelector("#id_password").value = %r;
  document.querySelector("main form").requestSubmit();
})()"""


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory, site: LiveServer) -> Iterator[Firefox]:
    """A window that is signed in."""
    binary = firefox_binary()
    if binary is None:
        pytest.skip(MISSING)
    with Firefox(binary, tmp_path_factory.mktemp("firefox") / "profile") as browser:
        browser.open(f"{site.url}/login/")
        browser.evaluate(SIGN_IN % (site.data_dir / "admin_password").read_text().strip())
        wait_until(lambda: browser.evaluate("location.pathname") == "/", 60, "the sign-in")
        yield browser


@pytest.mark.parametrize("width", [360, 1280])
def test_pages_are_drawn_without_errors(firefox: Firefox, site: LiveServer, width: int) -> None:
    firefox.resize(width, 844)
    firefox.errors.clear()
    found = {}
    for path in paths(site):
        firefox.open(f"{site.url}{path}")
        wait_until(lambda: firefox.evaluate("'scripts' in document.documentElement.dataset"), 60, "the page's script")
        too_wide = firefox.evaluate("document.documentElement.scrollWidth - innerWidth")
        violations, heading = firefox.evaluate("[violations, document.querySelector('h1')?.checkVisibility()]")
        if too_wide > 0 or violations or not (heading or path == "/playground/"):
            found[path] = (too_wide, violations, heading)
    assert found == {}
    assert firefox.errors == []


def test_the_palette_and_the_playground_by_keyboard(firefox: Firefox, site: LiveServer) -> None:
    firefox.resize(1280, 844)
    firefox.open(f"{site.url}/jobs/")
    wait_until(
        lambda: firefox.evaluate("document.querySelector('#palette-open')?.hidden === false"), 60, "the frame's script"
    )
    firefox.press("Control", "k")
    firefox.write("try demo")
    wait_until(lambda: firefox.evaluate("document.querySelectorAll('#palette-list li').length") == 1, 60, "the model")
    firefox.press("Enter")
    wait_until(lambda: "/playground/" in firefox.evaluate("location.href"), 60, "the playground")
    wait_until(
        lambda: firefox.evaluate("document.querySelector('#palette-open')?.hidden === false"), 60, "the frame's script"
    )
    firefox.press("/")
    wait_until(lambda: firefox.evaluate("document.activeElement?.id") == "prompt", 60, "the composer")
    firefox.write("What is a module?")
    firefox.press("Enter")
    wait_until(lambda: "ended by" in firefox.evaluate("document.body.innerText"), 120, "the answer")
    assert firefox.errors == []
