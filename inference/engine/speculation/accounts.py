"""Accounts: whom to guess for, and how far, so that it never costs more than a few percent.

Everything is counted in tokens: the time in which the engine, at the present number of requests, would have generated
that many without guessing. A step that verifies earns a token for each guess that holds and pays for the time that it
takes longer than a plain step. So nothing has to be known of the machine, the model or the batch size.

Guesses are made where they are expected to bring more than they cost, all requests of the step taken together
(``odds``, ``step_costs``). What they bring and lose is kept as the engine's balance, and while that owes more than
``DEBT`` nobody guesses. Where nothing is expected, a fund pays for trials: each token generated adds ``EARNING`` to it,
or to the balance while that owes something. So whatever the expectations are worth, a text that can't be guessed costs
a fixed small share of its time, and what was gained before at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.engine.speculation.odds import Odds, Record
from inference.engine.speculation.plain_steps import PlainSteps
from inference.engine.speculation.readings import Readings
from inference.engine.speculation.step_costs import StepCosts

FUND = 2.0
EARNING = 0.01
SAVINGS = 2.0
"""Tokens per request that the fund reaches by waiting; more only if finding out costs more."""
BOUND = 32.0
"""Most tokens on the balance, and most that it can owe."""
DEBT = 3.0

TRIAL_LENGTH = 2
"""Guesses of each request in a step that finds out."""
HOPE = 1 / 3
"""Where the odds of guesses that weren't made are known, a trial is only about what a step costs: it is worth while if
guesses would pay at this share of what is believed."""
FIRST_LENGTH = 3
"""Most guesses of each request while nobody knows what they cost at this number of requests."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that could guess.

    Attributes:
        record: Its.
        kind: Of the guesses.
        most: Further ones are of no use.
    """

    record: Record
    kind: int
    most: int


@dataclass(frozen=True, slots=True)
class Verified:
    """What one request had in a step.

    Attributes:
        record: Its.
        kind: Of its guesses.
        num_rows: Rows beyond the one that it would have had without guessing.
        num_guessed, num_accepted: Guesses that were verified, and those that held.
    """

    record: Record
    kind: int
    num_rows: int
    num_guessed: int
    num_accepted: int


class Accounts:
    """The account of an engine.

    Args:
        num_tokens: Most guesses at a time.
        is_adaptive: False: everybody always guesses as far as possible.
        priors: What is assumed at first of each kind of guess.
        replays: After a wrong guess the tokens before it are computed again (``rollback``).
        has_hindsight: ``note_hindsight`` tells of guesses that weren't made.
    """

    def __init__(
        self,
        num_tokens: int,
        *,
        is_adaptive: bool,
        priors: Sequence[float] = (0.5,),
        replays: bool = False,
        has_hindsight: bool = False,
    ) -> None:
        self._most = num_tokens
        self._is_adaptive = is_adaptive
        self._replays = replays
        self._has_hindsight = has_hindsight
        self._balance = 0.0
        self._fund = FUND
        self._goal = 0.0
        self._is_trial = False
        self._odds = Odds(priors)
        self._plain = PlainSteps()
        self._costs = StepCosts()
        self._readings = Readings()

    def is_open_for(self, num_requests: int) -> bool:
        """Whether guesses may be made in a step that generates for so many requests."""
        return not self._is_adaptive or self._plain.seconds(num_requests) is not None

    def lengths(self, candidates: Sequence[Candidate], num_requests: int) -> list[int]:
        """How far to guess for each candidate, in a step that generates for so many requests."""
        if not self._is_adaptive:
            return [min(self._most, candidate.most) for candidate in candidates]
        fixed, per_row = self._costs.of(num_requests)
        # A wrong guess of a recurrent model makes the next step longer as well.
        failing = per_row + fixed / len(candidates) if self._replays and candidates else 0.0
        most = self._most if self._costs.is_known(num_requests) else min(FIRST_LENGTH, self._most)
        lengths, value = self._best_lengths(candidates, most, fixed, per_row, failing)
        if value > 0 and self._balance > -DEBT:
            self._is_trial = False
            return lengths
        lengths = [min(TRIAL_LENGTH, candidate.most) for candidate in candidates]
        self._goal = fixed + sum(lengths) * per_row + len(candidates) * failing
        if self._goal > self._fund or not self._may_teach(candidates, most, fixed, per_row, failing):
            return [0] * len(candidates)
        self._is_trial = True
        return lengths

    def _best_lengths(
        self, candidates: Sequence[Candidate], most: int, fixed: float, per_row: float, failing: float
    ) -> tuple[list[int], float]:
        """The lengths that are expected to bring most, and what the step brings then."""
        lengths, value = [], -fixed
        for candidate in candidates:
            holds = self._odds.of(candidate.record, candidate.kind)
            length, worth = _best_length(holds, min(most, candidate.most), per_row, failing)
            lengths.append(length)
            value += worth
        return lengths, value

    def _may_teach(
        self, candidates: Sequence[Candidate], most: int, fixed: float, per_row: float, failing: float
    ) -> bool:
        """Whether a trial could show that guesses pay."""
        if not self._has_hindsight:
            return True
        return self._best_lengths(candidates, most, HOPE * fixed, HOPE * per_row, HOPE * failing)[1] > 0

    def note_hindsight(self, record: Record, kind: int, num_guessed: int, num_accepted: int) -> None:
        """Guesses that weren't made would have held so far; see ``Hindsight``."""
        if self._is_adaptive:
            self._odds.note_hindsight(record, kind, num_guessed, num_accepted)

    def may_read(self, candidate: Candidate, num_tokens: int, num_requests: int) -> bool:
        """Whether the proposer may read the text of a request, in a step that generates for so many.

        Args:
            candidate: The request.
            num_tokens: That aren't read.
        """
        plain_s = self._plain.seconds(num_requests)
        candidate.record.is_read = not self._is_adaptive or (
            plain_s is not None and self._readings.may_begin(num_tokens, candidate.most, num_requests, plain_s)
        )
        return candidate.record.is_read

    def note_reading(self, num_tokens: int, seconds: float, num_requests: int) -> None:
        """The proposer has read so many tokens, in a step that generates for so many requests."""
        plain_s = self._plain.seconds(num_requests)
        if plain_s is not None:
            self._readings.note_cost(num_tokens, seconds, num_requests, plain_s)

    def note_tokens(self, num_tokens: int, num_requests: int) -> None:
        """A step has generated so many, for so many requests."""
        self._readings.end_step(num_tokens)
        if self._balance < 0:
            self._balance += EARNING * num_tokens
        else:
            most = max(SAVINGS * num_requests, self._goal)
            self._fund = max(self._fund, min(most, self._fund + EARNING * num_tokens))

    def note_end(self, num_output: int) -> None:
        """A request has ended after so many tokens."""
        self._readings.note_end(num_output)

    def settle(self, records: Sequence[Record], verified: Sequence[Verified], seconds: float, *, is_pure: bool) -> None:
        """Book a step.

        Args:
            records: Of all requests that generated in it.
            verified: Those of them that had more than one row.
            seconds: How long it took.
            is_pure: No prompt was computed beside. Otherwise the times say nothing; there, a few rows more among
                many cost next to nothing, and are not charged.
        """
        if not self._is_adaptive:
            return
        for entry in verified:
            if entry.num_guessed:
                self._odds.note(entry.record, entry.kind, entry.num_guessed, entry.num_accepted)
        count, num_accepted = len(records), sum(entry.num_accepted for entry in verified)
        self.note_tokens(count + num_accepted, count)
        if not is_pure or not count:
            return
        gain = 0.0
        if verified:
            gain = self._charge(count, sum(entry.num_rows for entry in verified), num_accepted, seconds)
        else:
            self._plain.add(count, seconds)
        num_read = sum(record.is_read for record in records)
        if num_read:
            self._readings.note_gain(count, gain, num_read + num_accepted)

    def _charge(self, count: int, num_rows: int, num_accepted: int, seconds: float) -> float:
        """Book a step that verified; returns what was gained by it, in tokens."""
        plain = self._plain.seconds(count)
        if plain is None:
            return 0.0
        self._plain.grow_older(count)
        longer = self._costs.add(count, num_rows, max(0.0, seconds / plain - 1) * count)
        gain = num_accepted - longer
        if self._is_trial:
            self._fund += min(0.0, gain)
        else:
            self._balance = max(-BOUND, min(BOUND, self._balance + gain))
        return gain


def _best_length(holds: float, most: int, per_row: float, failing: float) -> tuple[int, float]:
    """The number of guesses that is expected to bring most, and what: (0, 0.0) if none brings anything.

    Args:
        holds: Probability of each guess, if those before it hold.
        most: Longest.
        per_row: Price of a guess.
        failing: Price of a run that breaks.
    """
    worth, expected, together = 0.0, 0.0, 1.0
    for length in range(1, most + 1):
        together *= holds
        expected += together
        longer = expected - length * per_row - (1 - together) * failing
        if longer <= worth:
            return length - 1, worth
        worth = longer
    return most, worth
