"""What speculation's bookkeeping decides: whom to guess for, how far, and whose text to read first."""

from __future__ import annotations

import itertools
import random

import pytest

from inference.engine.speculation.accounts import BOUND, FUND, TRIAL_LENGTH, Accounts, Candidate, Verified
from inference.engine.speculation.odds import Odds, Record
from inference.engine.speculation.plain_steps import FIRST_SAMPLES, REFRESH, REFRESH_SAMPLES, PlainSteps
from inference.engine.speculation.readings import BOUND as READINGS_BOUND
from inference.engine.speculation.readings import Readings
from inference.engine.speculation.step_costs import FIXED, MOST, PER_ROW, StepCosts


class Machine:
    """Runs steps of ``accounts`` on a machine with given costs, and counts what is gained.

    Args:
        fixed, row_cost: Of a step that verifies and of each of its rows, in plain steps of one request.
        acceptance: Probability that a guess holds.
        replays: A run that breaks makes the next step longer by as much again as one guess.
        has_hindsight: A request that doesn't guess is told whether it would have been right.
    """

    def __init__(self, accounts, row_cost, acceptance, *, fixed=0.0, replays=False, has_hindsight=False, seed=0):
        self.accounts, self.fixed, self.row_cost, self.acceptance = accounts, fixed, row_cost, acceptance
        self.replays, self.has_hindsight = replays, has_hindsight
        self.rng = random.Random(seed)
        self.seconds = self.num_tokens = self.num_guesses = 0

    def generate(self, count, num_requests=1, records=None):
        """So many tokens, on average, for each of the requests."""
        records = records or [Record() for _ in range(num_requests)]
        made, broken = 0, set()
        while made < count:
            for record in records:
                record.grow(int(made))
            candidates = [Candidate(record, 0, 1000) for record in records]
            lengths = [0] * len(records)
            if self.accounts.is_open_for(len(records)):
                lengths = self.accounts.lengths(candidates, len(records))
            verified, rows, replayed = [], 0, broken if self.replays else set()
            broken = set()
            for number, (record, length) in enumerate(zip(records, lengths, strict=True)):
                held = 0
                while held < length and self.rng.random() < self.acceptance:
                    held += 1
                if held < length:
                    broken.add(number)
                num_rows = length + (number in replayed)
                if num_rows:
                    verified.append(Verified(record, 0, num_rows, length, held))
                rows += num_rows
                if self.has_hindsight and not length and self.accounts.is_open_for(len(records)):
                    self.accounts.note_hindsight(record, 0, 1, self.rng.random() < self.acceptance)
            seconds = 1 + (self.fixed + self.row_cost * rows if rows else 0)
            self.accounts.settle(records, verified, seconds, is_pure=True)
            self.seconds += seconds
            self.num_guesses += sum(lengths)
            made += 1 + sum(entry.num_accepted for entry in verified) / len(records)
        self.num_tokens += made

    @property
    def gain(self):
        """Speed against a machine without guesses."""
        return self.num_tokens / self.seconds


# --- what they lose and win --------------------------------------------------------------------


EVERY_KIND = list(itertools.product([0.3, 0.95], [False, True], [False, True]))
"""Prior, replays, has_hindsight."""
EVERY_PAIR = [(0.3, False, False), (0.3, True, True), (0.95, False, True), (0.95, True, False)]
"""Of the same: with 32 requests each of these takes a second."""


@pytest.mark.parametrize(
    ("num_requests", "prior", "replays", "has_hindsight"),
    [(count, *kind) for count, kinds in ((1, EVERY_KIND), (8, EVERY_KIND), (32, EVERY_PAIR)) for kind in kinds],
)
@pytest.mark.parametrize(("fixed", "row_cost"), [(0.0, 0.05), (0.4, 0.1), (0.0, 1.0), (4.0, 0.02)])
def test_text_that_cannot_be_guessed_costs_little_however_dear_a_row_is(
    prior, replays, has_hindsight, fixed, row_cost, num_requests
):
    accounts = Accounts(8, is_adaptive=True, priors=(prior,), replays=replays, has_hindsight=has_hindsight)
    machine = Machine(accounts, row_cost / num_requests, 0.0, fixed=fixed, replays=replays, has_hindsight=has_hindsight)
    for _ in range(3):
        machine.generate(160, num_requests)
        assert machine.gain > 0.95
    for _ in range(17):
        machine.generate(160, num_requests)
    assert machine.gain > 0.975


@pytest.mark.parametrize(("row_cost", "least"), [(0.05, 3), (0.3, 1.5)])
@pytest.mark.parametrize("num_requests", [1, 8])
def test_text_that_can_be_guessed_is(row_cost, least, num_requests):
    machine = Machine(Accounts(8, is_adaptive=True), row_cost / num_requests, 0.95)
    for _ in range(5):
        machine.generate(200, num_requests)
    assert machine.gain > least


@pytest.mark.parametrize(("num_requests", "replays"), [(1, True), (8, False), (8, True)])
def test_guesses_that_would_have_been_wrong_are_known_without_a_trial(num_requests, replays):
    accounts = Accounts(8, is_adaptive=True, priors=(0.3,), replays=replays, has_hindsight=True)
    machine = Machine(accounts, 0.1, 0.1, fixed=0.5, replays=replays, has_hindsight=True)
    machine.generate(40, num_requests)
    machine.num_guesses = 0
    machine.generate(600, num_requests)
    assert machine.num_guesses == 0


@pytest.mark.parametrize("num_requests", [1, 8])
@pytest.mark.parametrize("replays", [False, True])
def test_guesses_that_would_have_held_are_made_soon_and_without_the_fund(num_requests, replays):
    accounts = Accounts(8, is_adaptive=True, priors=(0.3,), replays=replays, has_hindsight=True)
    machine = Machine(accounts, 0.1, 0.1, fixed=0.5, replays=replays, has_hindsight=True)
    records = [Record() for _ in range(num_requests)]
    machine.generate(100, records=records)
    accounts._fund, machine.acceptance, machine.num_guesses = 0.0, 1.0, 0
    machine.generate(20, records=records)
    assert machine.num_guesses > 0


def test_hindsight_does_not_end_the_trials_that_may_pay():
    """What a step costs is believed to be too much; it isn't tried for guesses that are mostly wrong."""
    for holds, is_tried in [(0.9, True), (0.05, False)]:
        accounts = Accounts(8, is_adaptive=True, priors=(holds,), has_hindsight=True)
        Machine(accounts, 0.1, 0.0).generate(FIRST_SAMPLES)
        accounts._costs.add(1, 2, 1.0)
        for _ in range(20):
            accounts._costs.add(1, 2, 4.0)
        accounts._fund = 100.0
        assert (accounts.lengths([Candidate(Record(), 0, 8)], 1) != [0]) == is_tried


def test_what_a_step_costs_once_is_shared_by_all_who_guess():
    """As on two cores: alone a guess costs more than it brings, all together less."""
    accounts = Accounts(8, is_adaptive=True, priors=(0.85,))
    machine = Machine(accounts, 0.05, 1.0, fixed=0.7)
    machine.generate(200, 8)
    assert machine.gain > 1.5
    alone = Candidate(Record(), 0, 2)
    assert accounts._costs.of(8)[0] > 2
    accounts._fund = 1.0
    assert accounts.lengths([alone], 8) == [0]
    assert accounts.lengths([Candidate(Record(), 0, 8) for _ in range(8)], 8) == [8] * 8


def test_a_machine_bound_by_arithmetic_stops_even_good_guesses():
    machine = Machine(Accounts(8, is_adaptive=True), 1 / 32 * 1.2, 0.7)
    machine.generate(400, 32)
    assert machine.gain > 0.95
    assert machine.num_guesses / (32 * machine.num_tokens) < 0.2


@pytest.mark.parametrize("replays", [False, True])
def test_a_text_that_becomes_guessable_is_found_out(replays):
    machine = Machine(Accounts(8, is_adaptive=True, replays=replays), 0.1, 0.0, fixed=0.3, replays=replays)
    records = [Record()]
    machine.generate(300, records=records)
    machine.acceptance, machine.seconds, machine.num_tokens = 1.0, 0, 0
    machine.generate(300, records=records)
    assert machine.gain > 2


def test_a_text_that_cannot_be_guessed_any_more_loses_no_more_than_was_gained():
    machine = Machine(Accounts(8, is_adaptive=True), 0.1, 1.0, fixed=0.3)
    records = [Record()]
    machine.generate(300, records=records)
    machine.acceptance, machine.seconds, machine.num_tokens = 0.0, 0, 0
    machine.generate(160, records=records)
    assert machine.gain > 0.87
    machine.generate(800, records=records)
    assert machine.gain > 0.96


def test_many_short_requests_cost_no_more_than_a_long_one():
    machine = Machine(Accounts(8, is_adaptive=True), 1.0, 0.0)
    for _ in range(300):
        machine.generate(10)
    assert machine.gain > 0.98
    assert machine.num_guesses > 0


def test_the_balance_is_bounded_and_a_great_debt_stops_everybody():
    accounts = Accounts(8, is_adaptive=True)
    machine = Machine(accounts, 0.01, 1.0)
    machine.generate(2000)
    assert accounts._balance == BOUND
    good = [Candidate(Record(), 0, 8)]
    assert accounts.lengths(good, 1) == [8]
    accounts._balance, accounts._fund = -3.5, 0.0
    assert accounts.lengths(good, 1) == [0]
    accounts.note_tokens(100, 1)
    assert accounts.lengths(good, 1) == [8]
    assert accounts._fund == 0


def test_steps_with_prompts_are_not_charged():
    accounts, record = Accounts(4, is_adaptive=True), Record()
    accounts.settle([record], [Verified(record, 0, 3, 3, 0)], 100.0, is_pure=False)
    assert accounts._fund >= FUND
    assert not accounts.is_open_for(1)


def test_without_adaption_everything_is_guessed():
    accounts, record = Accounts(4, is_adaptive=False), Record()
    accounts.settle([record], [Verified(record, 0, 4, 4, 0)], 9.0, is_pure=True)
    assert accounts.is_open_for(7)
    assert accounts.lengths([Candidate(record, 0, 9), Candidate(record, 0, 2)], 7) == [4, 2]
    assert accounts.may_read(Candidate(record, 0, 1), 1000, 7)


# --- plain steps -------------------------------------------------------------------------------


def test_plain_steps_leave_out_the_first_ones_and_hiccups_and_are_measured_again():
    plain = PlainSteps()
    for number, seconds in enumerate([9.0, 9.0, 5.0, 4.0, 1.0, 1.1]):
        assert plain.seconds(3) is None, number
        plain.add(3, seconds)
    assert number == FIRST_SAMPLES - 1
    assert plain.seconds(3) == 1.1 and plain.seconds(4) is None
    for _ in range(REFRESH):
        assert plain.seconds(3) == 1.1
        plain.grow_older(3)
    for _ in range(REFRESH_SAMPLES):
        assert plain.seconds(3) is None
        plain.add(3, 2.0)
    assert plain.seconds(3) == 2.0


# --- what steps cost ---------------------------------------------------------------------------


def test_costs_of_a_number_nobody_has_tried_are_those_of_another():
    costs = StepCosts()
    assert costs.of(4) == (4 * FIXED, PER_ROW)
    costs.add(4, 8, 12.0)
    for rows in (8, 32, 16, 24, 8, 32):
        costs.add(4, rows, 2.0 + 0.25 * rows)
    fixed, per_row = costs.of(4)
    assert fixed == pytest.approx(2.0, abs=0.6) and per_row == pytest.approx(0.25, abs=0.05)
    assert costs.of(8) == (pytest.approx(2 * fixed), per_row)


def test_the_first_step_of_a_number_and_hiccups_say_little():
    costs = StepCosts()
    assert costs.add(1, 2, 50.0) == pytest.approx(2 * (FIXED + 2 * PER_ROW) + 0.1)
    assert costs.of(1) == (FIXED, PER_ROW)
    assert StepCosts().of(1) == costs.of(1)
    costs.add(1, 2, 0.4)
    costs.add(1, 2, 50.0)
    for _ in range(4):
        costs.add(1, 2, 0.4)
    fixed, per_row = costs.of(1)
    assert fixed + 2 * per_row < 0.6


def test_a_step_counts_as_so_many_plain_ones_at_most():
    costs = StepCosts()
    costs.add(2, 4, 1.0)
    assert costs.add(2, 4, 500.0) == 2 * MOST


@pytest.mark.parametrize("line", [[(3, 0.0), (9, 0.0)], [(3, 3.0), (9, 1.0)], [(3, 0.1), (9, 3.0)]])
def test_neither_part_of_a_cost_is_negative(line):
    costs = StepCosts()
    for rows, tokens in [(1, 1.0), *line, *line]:
        costs.add(1, rows, tokens)
    fixed, per_row = costs.of(1)
    assert fixed >= 0 and per_row >= 0


# --- the odds ----------------------------------------------------------------------------------


def test_a_kind_is_worth_what_its_guesses_were():
    odds = Odds((0.3, 0.8))
    assert [odds.of(Record(), kind) for kind in (0, 1)] == pytest.approx([0.3, 0.8])
    for _ in range(200):
        odds.note(Record(), 1, 4, 0)
    assert odds.of(Record(), 1) < 0.1
    assert odds.of(Record(), 0) == pytest.approx(0.3)


def test_a_request_counts_for_more_than_its_kind_and_is_forgotten_as_it_goes_on():
    odds, record = Odds((0.5,)), Record()
    for _ in range(3):
        odds.note(record, 0, 1, 0)
    after = odds.of(record, 0)
    assert after < odds.of(Record(), 0)
    record.grow(30)
    assert after < odds.of(record, 0) < odds.of(Record(), 0)
    record.grow(600)
    assert odds.of(record, 0) == pytest.approx(odds.of(Record(), 0), rel=0.01)


def test_guesses_that_were_not_made_count_like_those_that_were_and_chance_says_less():
    odds, record = Odds((0.3,)), Record()
    made, own = Odds((0.3,)), Record()
    for num_accepted in (0,) * 8 + (1,) * 3:
        odds.note_hindsight(record, 0, 1, num_accepted)
        made.note(own, 0, 1, num_accepted)
    assert odds.of(Record(), 0) == made.of(Record(), 0)
    assert odds.of(record, 0) < 0.5 < made.of(own, 0)
    odds.note_hindsight(record, 0, 12, 12)
    assert odds.of(record, 0) > 0.9


def test_guesses_behind_a_wrong_one_say_nothing():
    odds, record = Odds((0.5,)), Record()
    odds.note(record, 0, 8, 2)
    tally = record.tallies[0]
    assert (tally.num_tried, tally.num_held) == (3, 2)
    odds.note(record, 0, 2, 2)
    assert (tally.num_tried, tally.num_held) == pytest.approx((0.6 * 3 + 2, 0.6 * 2 + 2))


# --- readings ----------------------------------------------------------------------------------


def test_a_reading_is_bought_from_the_fund_or_from_what_it_will_bring():
    readings = Readings()
    assert readings.may_begin(100, 500, 1, 1.0)
    assert not readings.may_begin(100, 500, 1, 1.0), "one shows what it costs"
    readings.note_cost(100, 10.0, 1, 1.0)
    readings.end_step(1)
    # It took ten plain steps, so the fund owes.
    assert not readings.may_begin(100, 500, 1, 1.0)
    readings.note_end(40)
    readings.note_gain(1, 40.0, 80)
    # Half a token gained per token, for 40 tokens, is more than 10; for 15 it isn't, and a longer text costs more.
    assert readings.may_begin(100, 500, 1, 1.0)
    assert not readings.may_begin(100, 15, 1, 1.0)
    assert not readings.may_begin(300, 500, 1, 1.0)
    # At eight requests nothing has been gained yet, and a reading holds eight of them up.
    assert not readings.may_begin(100, 500, 8, 1.0)
    readings.note_gain(1, -300.0, 200)
    assert not readings.may_begin(100, 500, 1, 1.0)


def test_the_fund_of_readings_fills_up_again_up_to_a_bound():
    readings = Readings()
    assert not readings.may_begin(10, 500, 8, 1.0), "what eight would lose isn't in it yet"
    readings.may_begin(10, 500, 1, 1.0)
    readings.note_cost(10, 1000.0, 1, 1.0)
    assert readings._fund == -READINGS_BOUND
    readings.note_cost(1000, 1.0, 1, 1.0)
    waited = 0
    while not readings.may_begin(1, 500, 1, 1.0):
        readings.end_step(100)
        waited += 100
    assert 5_000 < waited < 50_000
    for _ in range(1000):
        readings.end_step(100)
    assert readings._fund == READINGS_BOUND


def test_a_reading_that_did_not_happen_is_allowed_again():
    readings = Readings()
    assert readings.may_begin(10, 500, 1, 1.0)
    readings.end_step(1)
    assert readings.may_begin(10, 500, 1, 1.0)


def test_a_trial_is_short():
    accounts = Accounts(8, is_adaptive=True, priors=(0.1,))
    machine = Machine(accounts, 0.1, 0.0)
    machine.generate(FIRST_SAMPLES)
    assert accounts.lengths([Candidate(Record(), 0, 8)], 1) == [TRIAL_LENGTH]
