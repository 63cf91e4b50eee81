"""Rollback: restore recurrent states from before rejected draft tokens.

Paged state needs no rollback: positions after the accepted tokens are overwritten before they are read. A recurrent
state includes all tokens, so a step that verifies draft tokens first copies the state to a spare slot. If a draft token
is rejected, the copy replaces the original by an exchange of slot numbers, and the accepted tokens are computed again
together with the next ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from inference.engine.running_request import Request


class CopySlot(Protocol):
    """The method of ``StateAccess`` that ``Rollback`` calls."""

    def copy_slot(self, source: int, target: int) -> None:
        """Copy a slot's states into another slot."""


class Rollback:
    """Own the spare slots.

    Args:
        access: Copies states.
        first_slot, num_slots: The spare slots at the start; exchanges change the slots, but not their number.
    """

    def __init__(self, access: CopySlot, *, first_slot: int, num_slots: int) -> None:
        self._access = access
        self._free = list(range(first_slot, first_slot + num_slots))
        self._saved: dict[Request, tuple[int, int]] = {}
        # The first write to mapped memory is slow; write here, so that no verification waits.
        for spare in self._free:
            access.copy_slot(0, spare)

    @property
    def num_free(self) -> int:
        """Number of further sequences that can be saved."""
        return len(self._free)

    def save(self, request: Request) -> None:
        """Copy the request's state after ``num_computed_tokens`` tokens; replace an earlier copy."""
        assert request.state is not None
        spare = self._saved[request][0] if request in self._saved else self._free.pop()
        self._access.copy_slot(request.state.slot, spare)
        self._saved[request] = (spare, request.num_computed_tokens)

    def restore(self, request: Request) -> None:
        """Replace the request's state by its copy, which is then used up."""
        spare, num_computed = self._saved.pop(request)
        assert request.state is not None
        self._free.append(request.state.slot)
        request.state = replace(request.state, slot=spare)
        request.num_computed_tokens = num_computed

    def drop(self, request: Request) -> None:
        """Free the request's copy, if there is one."""
        saved = self._saved.pop(request, None)
        if saved is not None:
            self._free.append(saved[0])

    def drop_all(self) -> None:
        """Free all copies."""
        for request in list(self._saved):
            self.drop(request)
