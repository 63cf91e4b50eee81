"""Starting a generation: what views and consumers call.

``generation_start`` looks up the model, checks the request against it and the caller's limits, and returns the running
``Generation`` once its prompts are accepted.
"""

from __future__ import annotations

import asyncio

from inference.auth import Principal
from inference.coroutines import run_in_background
from inference.errors import BlazrError
from inference.generation import Generation, Surface
from inference.generation_plan import GenerationPlan
from inference.grammar_checks import grammar_checks
from inference.key_watch import key_watch
from inference.limits.admission import admit
from inference.limits.rules import estimate_tokens
from inference.selectors import served_model_get

_SURFACES = {
    "completion": Surface("completion", "cmpl-"),
    "chat": Surface("chat", "chatcmpl-"),
    "embedding": Surface("embedding", "embd-"),
}


async def generation_start(*, plan: GenerationPlan, principal: Principal, surface: Surface | None = None) -> Generation:
    """Send a request to the workers and wait until all of its prompts are accepted.

    Args:
        plan: The checked request.
        principal: Who asks.
        surface: The API it came through, when that isn't the plan's own endpoint.

    Returns:
        The running generation; the caller must ``close`` it, or exhaust ``events``.

    Raises:
        UnknownModel: Nothing is served under that name.
        InvalidRequest: The model can't do this, or the worker refused the prompt.
        PermissionRefused: The key isn't for this model.
        RateLimitExceeded: A limit of the key is reached.
        Unavailable: No room, or the model didn't get ready in time.
    """
    served = await served_model_get(name=plan.model)
    plan = served.resolved(plan)
    if plan.params.grammar is not None:
        await grammar_checks().check(plan.params.grammar)
    admission = await admit(principal, tokens=estimate_tokens(plan))
    generation = Generation(plan.with_seed(), principal, served, surface or _SURFACES[plan.endpoint], admission)
    if principal.key_id is not None:
        key_watch().add(generation, principal.key_id)
    try:
        await generation.open()
    except BaseException as error:
        # Cancelled means: the client has gone. Either way nobody is going to listen.
        outcome = error.code if isinstance(error, BlazrError) else "cancelled"
        await asyncio.shield(run_in_background(generation.close(outcome)))
        raise
    return generation
