"""Blocks, slots and request indices under any order of admissions, growth and releases."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from inference.engine.config import EngineConfig, blocks_for
from inference.engine.state_manager import StateManager
from tests.inference.engine.fakes import make_spec

NUM_BLOCKS, NUM_SLOTS, BLOCK_SIZE, MAX_LEN, MAX_SEQS = 14, 5, 4, 40, 6


class StateMachine(RuleBasedStateMachine):
    @initialize(kind=st.sampled_from(["paged", "slots", "hybrid"]))
    def start(self, kind):
        config = EngineConfig(MAX_LEN, NUM_BLOCKS, NUM_SLOTS, BLOCK_SIZE, max_num_seqs=MAX_SEQS)
        self.manager = StateManager(make_spec(kind), config)
        self.paged, self.slotted = kind != "slots", kind != "paged"
        self.running = {}  # SequenceState -> tokens

    @rule(num_tokens=st.integers(1, MAX_LEN), reserve=st.integers(0, 3))
    def admit(self, num_tokens, reserve):
        free = self.manager.kv.pool.num_free
        limit = NUM_SLOTS - 1 if self.slotted else MAX_SEQS
        fits = blocks_for(num_tokens, BLOCK_SIZE) + reserve <= free or not self.paged
        assert self.manager.can_admit(num_tokens, reserve_blocks=reserve) == (fits and len(self.running) < limit)
        if self.manager.can_admit(num_tokens, reserve_blocks=reserve):
            state = self.manager.allocate()
            assert state not in self.running and self.manager.extend(state, num_tokens)
            self.running[state] = num_tokens

    @rule(data=st.data(), more=st.integers(1, 12))
    def extend(self, data, more):
        if self.running:
            state = data.draw(st.sampled_from(list(self.running)))
            wanted = min(MAX_LEN, self.running[state] + more)
            free = self.manager.kv.pool.num_free
            missing = blocks_for(wanted, BLOCK_SIZE) - blocks_for(self.running[state], BLOCK_SIZE)
            done = self.manager.extend(state, wanted)
            assert done == (not self.paged or missing <= free)
            if done:
                self.running[state] = wanted

    @rule(data=st.data())
    def release(self, data):
        if self.running:
            state = data.draw(st.sampled_from(list(self.running)))
            del self.running[state]
            self.manager.release(state)

    @invariant()
    def nothing_is_lost_or_shared(self):
        if not hasattr(self, "manager"):
            return
        pool, free_slots = self.manager.kv.pool, self.manager.free_slots
        owned = []
        for state, num_tokens in self.running.items():
            count = int(self.manager.kv.num_blocks_of[state.index])
            blocks = self.manager.kv.block_tables[state.index].tolist()
            assert count == (blocks_for(num_tokens, BLOCK_SIZE) if self.paged else 0)
            assert not any(blocks[count:]), "the rest of a table is scratch"
            owned += blocks[:count]
        assert len(set(owned)) == len(owned) and 0 not in owned, "a block has two owners"
        assert pool.num_used == len(owned) and pool.num_used + pool.num_free == pool.num_blocks - 1
        taken = [state.slot for state in self.running]
        if self.slotted:
            assert len(set(taken)) == len(taken) and 0 not in taken, "a slot has two owners"
            assert sorted(taken + free_slots) == list(range(1, NUM_SLOTS))
        assert len({state.index for state in self.running}) == len(self.running)

    def teardown(self):
        for state in getattr(self, "running", {}):
            self.manager.release(state)
        if hasattr(self, "manager"):
            assert self.manager.kv.pool.num_used == 0
            assert len(self.manager.free_slots) == self.manager.num_slots - 1


TestStateMachine = StateMachine.TestCase
TestStateMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
