"""ServedModel: what the API knows of a model, and which plans it can serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inference.errors import InvalidRequest, InvalidTokenIds, PromptTooLong, UnsupportedFeature
from inference.values.images import ImageInput, images_of, no_images
from inference.values.plan import GenerationPlan
from inference.values.tokenizer_spec import TokenizerSpec


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the API needs to know of a checkpoint.

    Attributes:
        checkpoint_id: Primary key.
        created: Unix time of its registration.
        vocab_size: Token ids are below it.
        max_model_len: Prompt plus output, in tokens.
        tokenizer: Kind ``none``: token-id prompts only.
        version: Changes whenever the checkpoint's row does.
        hidden_size: Numbers in an embedding; 0: not known.
        tool_format, reasoning_format: As the operator set them; auto: what the template says.
        images: How it sees pictures; None: it reads text only.
        adapter: Id of the LoRA adapter through which its requests go; empty: none.
        parameters: Options of Ollama's requests that don't give them, as pairs.
    """

    checkpoint_id: str
    name: str
    created: int
    vocab_size: int
    max_model_len: int
    tokenizer: TokenizerSpec
    version: str
    hidden_size: int = 0
    tool_format: str = "auto"
    reasoning_format: str = "auto"
    images: ImageInput | None = None
    adapter: str = ""
    parameters: tuple[tuple[str, Any], ...] = ()

    def check(self, plan: GenerationPlan) -> None:
        """Refuse what this model can't do, as far as it shows without a tokenizer.

        Raises:
            UnsupportedFeature: Text or a grammar for a model without a tokenizer, chat without a template, pictures for
                a model that reads text only.
            InvalidTokenIds: An id outside of the vocabulary.
            PromptTooLong: More ids than the context holds.
        """
        without_tokenizer = self.tokenizer.kind == "none"
        prompt_name = "input" if plan.embedding is not None else "prompt"
        for prompt in (item for given in plan.prompts for item in given.get("inputs", [given])):
            token_ids = prompt.get("token_ids")
            if token_ids is not None:
                self.check_token_ids(token_ids, param=prompt_name)
                if len(token_ids) > self.max_model_len:
                    raise PromptTooLong.of(
                        self.max_model_len, len(token_ids), plan.params.max_tokens, noun=prompt_name, param=prompt_name
                    )
            elif without_tokenizer:
                raise UnsupportedFeature(
                    f"The model {self.name!r} has no tokenizer: it takes prompts as token ids only "
                    "(POST /v1/completions with a list of integers).",
                    param="messages" if "messages" in prompt else prompt_name,
                )
            elif "messages" in prompt and self.tokenizer.chat_template is None:
                raise UnsupportedFeature(
                    f"The model {self.name!r} has no chat template; use /v1/completions.", param="messages"
                )
            if self.images is None and images_of(prompt.get("messages", ())):
                raise no_images(self.name)
        for name, ids in (("stop_token_ids", plan.params.stop_token_ids), ("logit_bias", plan.params.logit_bias)):
            self.check_token_ids(list(ids), param=name)
        dimensions = plan.embedding and plan.embedding["dimensions"]
        if dimensions and 0 < self.hidden_size < dimensions:
            raise InvalidRequest(
                f"dimensions is {dimensions}; {self.name!r} makes vectors of {self.hidden_size}, ask for at most that.",
                param="dimensions",
            )
        if without_tokenizer and plan.params.grammar is not None:
            raise UnsupportedFeature(
                f"The model {self.name!r} has no tokenizer, so that its output can't be made to follow a grammar.",
                param=plan.params.grammar.param,
            )
        if without_tokenizer and plan.params.stop:
            raise UnsupportedFeature(
                f"The model {self.name!r} has no tokenizer, so that stop strings can't be found in its output; "
                "use stop_token_ids.",
                param="stop",
            )

    def check_token_ids(self, token_ids: list[int], *, param: str) -> None:
        """Refuse ids outside of the vocabulary.

        Raises:
            InvalidTokenIds: Names the first one.
        """
        if token_ids and (max(token_ids) >= self.vocab_size or min(token_ids) < 0):
            wrong = next(item for item in token_ids if not 0 <= item < self.vocab_size)
            raise InvalidTokenIds(
                f"{param} has the token id {wrong}; the model {self.name!r} has the ids 0 to {self.vocab_size - 1}.",
                param=param,
            )
