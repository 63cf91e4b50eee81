"""A tiny model that sees, with a tokenizer and a chat template, and conversations with pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.values.messages import GenerationEvent
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.modelling.vision.specs import spec_of
from tests.inference.modelling.vision.tiny import make_gemma3, make_phi3_v
from tests.inference.text.images.pictures import encoded
from tests.inference.text.tokenisation.family_templates import FAMILY_TEMPLATES

VOCAB_SIZE = 400
CORPUS = ["the quick brown fox jumps over the lazy dog. what is in this picture? " * 3, "user system assistant\n" * 3]
OPTIONS = LLMOptions(max_model_len=512, max_num_seqs=8, max_num_batched_tokens=64, num_threads=1)


def write_tokenizer(path: Path, special: list[str]) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(path))


class Phi3V:
    """A tiny Phi-3-vision: the reference, and what ``LLM.load`` takes."""

    special = ("<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|image|>")
    image_token = 6

    def __init__(self, directory: Path) -> None:
        self.reference = make_phi3_v(directory, vocab_size=VOCAB_SIZE)
        write_tokenizer(directory / "tokenizer.json", list(self.special))
        self.spec = spec_of(directory)
        self.files = [directory / "model.safetensors"]
        self.tokenizer = TokenizerSpec(
            "huggingface",
            VOCAB_SIZE,
            path=str(directory / "tokenizer.json"),
            bos_token_id=0,
            eos_token_ids=(1,),
            chat_template="{{ bos_token }}" + FAMILY_TEMPLATES["phi3"],
            special_tokens=(("bos_token", "<s>"), ("eos_token", "</s>")),
        )

    def load(self, **options: Any) -> LLM:
        return LLM.load(self.spec, self.tokenizer, self.files, replace(OPTIONS, **options))


GEMMA_TEMPLATE = (
    "{{ bos_token }}"
    "{% set ns = namespace(system='') %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{% set ns.system = message['content'] + '\\n\\n' %}"
    "{% else %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' + ns.system }}"
    "{% set ns.system = '' %}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% else %}{% for item in message['content'] %}"
    "{% if item['type'] == 'image' %}{{ '<start_of_image>' }}"
    "{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<end_of_turn>\\n' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
"""Takes content in parts, as Gemma 3's own does."""


class Gemma3(Phi3V):
    """A tiny Gemma 3."""

    special = (
        "<s>", "</s>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>",
    )  # fmt: skip

    def __init__(self, directory: Path) -> None:
        self.reference = make_gemma3(directory, vocab_size=VOCAB_SIZE, image_token=self.image_token)
        write_tokenizer(directory / "tokenizer.json", list(self.special))
        self.spec = spec_of(directory)
        self.files = sorted(directory.glob("*.safetensors"))
        self.tokenizer = TokenizerSpec(
            "huggingface",
            VOCAB_SIZE,
            path=str(directory / "tokenizer.json"),
            bos_token_id=0,
            eos_token_ids=(1,),
            chat_template=GEMMA_TEMPLATE,
            special_tokens=(("bos_token", "<s>"), ("eos_token", "</s>")),
        )


MODELS = {"phi3_v": Phi3V, "gemma3": Gemma3}


def image_part(image: Image.Image, form: str = "PNG") -> dict[str, Any]:
    """A picture as a client of chat completions writes it."""
    return {"type": "image_url", "image_url": {"url": f"data:image/{form.lower()};base64,{encoded(image, form)}"}}


def asking(*parts: str | Image.Image | dict[str, Any], before: str | None = None) -> list[dict[str, Any]]:
    """One message of texts and pictures, perhaps behind a system's."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else part
        if isinstance(part, dict)
        else image_part(part)
        for part in parts
    ]
    first = [] if before is None else [{"role": "system", "content": before}]
    return [*first, {"role": "user", "content": content}]


def ids_of(events: list[GenerationEvent]) -> list[int]:
    return [token for event in events if event["type"] == "delta" for token in event["token_ids"]]


def usage_of(events: list[GenerationEvent]) -> Any:
    assert events[-1]["type"] == "done", events[-1]
    return events[-1]["usage"]
