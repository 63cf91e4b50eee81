"""Starting a generation: what views and consumers call.

``generation_start`` looks up the model, checks the request against it and the caller's limits, and returns the running
``Generation`` once its prompts are accepted.
"""

from __future__ import annotations

import asyncio

from inference.access.admission import admit
from inference.access.key_watch import key_watch
from inference.errors import BlazrError
from inference.host.coroutines import run_in_background
from inference.serving.generation import Generation, Surface
from inference.serving.grammar_checks import grammar_checks
from inference.serving.served_models import plan_for_model, served_model_get
from inference.values.limits import estimate_tokens
from inference.values.plan import GenerationPlan
from inference.values.principal import Principal

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
    plan = plan_for_model(plan, served)
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
