"""Rollback: recurrent states as they were before tokens that may not hold.

Paged state needs nothing of the kind: positions behind those that count are written again before anybody reads them.
A recurrent state has all tokens in it, so a step that verifies draft tokens first copies it to a spare slot. If a
draft token is rejected, the copy takes the place of the original by exchanging their numbers, and the accepted tokens
are computed again together with the next ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from inference.engine.running_request import Request
from inference.engine.state.state_cache import StateCache


class CopySlot(Protocol):
    """``StateAccess``, as far as it is used here."""

    def copy_slot(self, source: int, target: int) -> None:
        """A slot's states into another."""
        ...


class Rollback:
    """Owns the spare slots.

    Args:
        slots: The running sequences'.
        access: Copies states.
        first_slot, num_slots: The spare ones at the start; later they are others, but as many.
    """

    def __init__(self, slots: StateCache, access: CopySlot, *, first_slot: int, num_slots: int) -> None:
        self._slots = slots
        self._access = access
        self._free = list(range(first_slot, first_slot + num_slots))
        self._saved: dict[Request, tuple[int, int]] = {}
        # Memory that nobody has written to is slow once (tens of ms a slot, where the state is large), and the first
        # verification would hold all requests up for it.
        for spare in self._free:
            access.copy_slot(0, spare)

    @property
    def num_free(self) -> int:
        """Sequences that can be saved now."""
        return len(self._free)

    def save(self, request: Request) -> None:
        """Keep the request's state as it is, after ``num_computed_tokens`` tokens, in place of what was kept of it."""
        assert request.state is not None
        spare = self._saved[request][0] if request in self._saved else self._free.pop()
        self._access.copy_slot(request.state.slot, spare)
        self._saved[request] = (spare, request.num_computed_tokens)

    def restore(self, request: Request) -> None:
        """Go back to what was kept; it is not kept any more."""
        spare, num_computed = self._saved.pop(request)
        assert request.state is not None
        self._free.append(request.state.slot)
        self._slots.replace(request.state.slot, spare)
        request.state = replace(request.state, slot=spare)
        request.num_computed_tokens = num_computed

    def drop(self, request: Request) -> None:
        """What was kept, if anything, isn't needed."""
        saved = self._saved.pop(request, None)
        if saved is not None:
            self._free.append(saved[0])

    def drop_all(self) -> None:
        """The step broke off."""
        for request in list(self._saved):
            self.drop(request)
