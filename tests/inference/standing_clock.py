"""A clock in the place of a module's ``time``."""

from __future__ import annotations

import time


class StandingClock:
    """Stands still until the test moves it; sleeping takes real time."""

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now
