"""How many tokens the prompt of a chat request has, counted in the web process without generating."""

from __future__ import annotations

from inference.serving.served_models import plan_for_model, served_model_get
from inference.serving.tokenizers import tokenizer_cache
from inference.values.plan import GenerationPlan


async def prompt_tokens(plan: GenerationPlan) -> tuple[int, int]:
    """(tokens of the plan's one prompt, most tokens of prompt and output of its model).

    Raises:
        UnknownModel: Nothing is served under that name.
        InvalidRequest: The model can't do this, or the prompt can't be rendered.
        QueueFull: Too many wait for their tokens to be counted.
    """
    served = await served_model_get(name=plan.model)
    (prompt,) = plan_for_model(plan, served).prompts
    ids = await tokenizer_cache().run(served, lambda text: text.token_ids(prompt))
    return len(ids), served.max_model_len
