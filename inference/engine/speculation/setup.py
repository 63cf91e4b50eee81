"""Build a speculator from its options."""

from __future__ import annotations

from dataclasses import dataclass

from inference.engine.config import EngineConfig
from inference.engine.model_runner import Network
from inference.engine.speculation.draft_runner import DraftModel, DraftRunner
from inference.engine.speculation.policy import DraftingCosts
from inference.engine.speculation.prediction_runner import PredictionRunner
from inference.engine.speculation.proposer import NgramProposer, Proposer
from inference.engine.speculation.rollback import CopySlot, Rollback
from inference.engine.speculation.speculator import Speculator
from inference.engine.state_manager import StateManager
from inference.errors import InvalidRequest
from inference.modelling.network import HybridForCausalLM
from inference.modelling.prediction_head import PredictionHead
from inference.modelling.spec import ModelSpec
from inference.values.speculative_options import SpeculativeOptions


@dataclass(frozen=True, slots=True)
class Speculation:
    """Configuration of an engine's speculative decoding.

    Attributes:
        options: Method and sizes.
        draft: Draft model of the method ``draft``.
        head: The model's head of the method ``mtp``.
    """

    options: SpeculativeOptions
    draft: DraftModel | None = None
    head: PredictionHead | None = None


def make_speculator(
    speculation: Speculation,
    network: Network,
    spec: ModelSpec,
    config: EngineConfig,
    states: StateManager,
    access: CopySlot,
) -> Speculator:
    """Build the speculator of an engine.

    Args:
        network: The engine's network.
        spec: Its specification.

    Raises:
        InvalidRequest: The draft model or the head is missing, or there are no spare slots for recurrent states.
    """
    options = speculation.options
    proposer: Proposer
    if options.method == "draft":
        if speculation.draft is None:
            raise InvalidRequest("speculative method draft needs a loaded draft model.", param="speculative")
        proposer = DraftRunner(speculation.draft, options.max_draft_tokens)
    elif options.method == "mtp":
        if speculation.head is None or not isinstance(network, HybridForCausalLM):
            raise InvalidRequest("speculative method mtp needs the model's loaded head.", param="speculative")
        proposer = PredictionRunner(speculation.head, network, config, options.max_draft_tokens)
    else:
        proposer = NgramProposer(options.min_match)
    rollback = None
    max_num_drafting = options.max_num_seqs
    if states.has_slots:
        if config.num_spare_slots < 1:
            raise InvalidRequest(
                "num_spare_slots is 0, speculation with recurrent layers needs at least 1; raise the state budget.",
                param="speculative",
            )
        first_slot = config.num_state_slots + config.num_snapshot_slots
        rollback = Rollback(access, first_slot=first_slot, num_slots=config.num_spare_slots)
        max_num_drafting = min(max_num_drafting, config.num_spare_slots)
    costs = drafting_costs(speculation, spec)
    return Speculator(options, proposer, rollback, costs, max_num_drafting=max_num_drafting)


def drafting_costs(speculation: Speculation, spec: ModelSpec) -> DraftingCosts:
    """Return what drafting for a model costs.

    Args:
        speculation: What drafts.
        spec: The model.
    """
    of_pass = 0
    if speculation.draft is not None:
        of_pass = _weights_of_step(speculation.draft.spec)
    elif speculation.head is not None:
        of_pass = _weights_of_step(speculation.head.spec) + 2 * spec.hidden_size**2  # with ``eh_proj``
    return DraftingCosts(of_pass / _weights_of_step(spec), has_recurrence=bool(spec.state_bytes_per_sequence()))


def _weights_of_step(spec: ModelSpec) -> int:
    """Weights that a token is multiplied by, those of the logits included."""
    return spec.num_active_parameters() + spec.vocab_size * spec.hidden_size
