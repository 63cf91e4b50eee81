"""An upload of a model over HTTP, as the page does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from inference.demo.paths import PREBUILT_DIRECTORY
from tests.faults.site import Site, wait_until


class Upload:
    """The demo model, uploaded in pieces to the first web process as an administrator's browser does.

    Attributes:
        num_pieces: Number of pieces that the server has taken.
        is_sent: Whether it has all of them.
    """

    PIECE_BYTES = 256 << 10

    def __init__(self, site: Site, name: str, *, digests: Mapping[str, str] | None = None) -> None:
        self._site = site
        self._files = sorted(PREBUILT_DIRECTORY.iterdir())
        self._browser = site.browser()
        self.num_pieces = 0
        self.is_sent = False
        declared = [
            {"name": file.name, "size_bytes": file.stat().st_size, "sha256": (digests or {}).get(file.name, "")}
            for file in self._files
        ]
        body = {"served_model_name": name, "label": name, "files": declared}
        self.id = self._browser.post("/registry/uploads", json=body).raise_for_status().json()["id"]

    def headers(self) -> list[str]:
        """The headers of a piece, as lines."""
        cookies = "; ".join(f"{name}={value}" for name, value in self._browser.cookies.items())
        token = self._browser.headers["X-CSRFToken"]
        return [f"Cookie: {cookies}", f"X-CSRFToken: {token}", "Content-Type: application/octet-stream"]

    def reopened(self) -> Upload:
        """Return the same upload over new connections."""
        self._browser.close()
        self._browser = self._site.browser()
        return self

    def state(self) -> dict[str, Any]:
        """The upload as the server has it."""
        found: dict[str, Any] = self._browser.get(f"/registry/uploads/{self.id}").raise_for_status().json()
        return found

    def send(self) -> httpx.Response | None:
        """Send what the server lacks; return the first response that isn't a success."""
        received = {file["number"]: file["received_bytes"] for file in self.state()["files"]}
        for number, file in enumerate(self._files):
            content = file.read_bytes()
            for offset in range(received[number], len(content), self.PIECE_BYTES):
                response = self._browser.put(
                    f"/registry/uploads/{self.id}/files/{number}?offset={offset}",
                    content=content[offset : offset + self.PIECE_BYTES],
                    headers={"Content-Type": "application/octet-stream"},
                )
                if not response.is_success:
                    return response
                self.num_pieces += 1
        self.is_sent = True
        return None

    def finish(self) -> None:
        """Have the files checked and registered."""
        self._browser.post(f"/registry/uploads/{self.id}/finish").raise_for_status()

    def wait(self, state: str) -> dict[str, Any]:
        """Wait for the end of the check."""
        wait_until(lambda: self.state()["state"] == state, 20, f"the upload is {state}")
        return self.state()

    def register(self) -> str:
        """Send what the server lacks, have it checked, and return the id of the checkpoint."""
        response = self.send()
        assert response is None, response.text
        self.finish()
        found: str = self.wait("done")["checkpoint"]
        return found

    def left_behind(self) -> list[str]:
        """Its files among the uploads, locks aside."""
        directory = self._site.directory / "uploads" / self.id
        return [path.name for path in directory.rglob("*.part")]
