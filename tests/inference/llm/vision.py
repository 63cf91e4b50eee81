"""A tiny model that sees, with a tokenizer and a chat template, and conversations with pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.values.messages import GenerationEvent
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.modelling.vision.specs import spec_of
from tests.inference.modelling.vision.tiny import make_phi3_v, picture
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
        from dataclasses import replace

        return LLM.load(self.spec, self.tokenizer, self.files, replace(OPTIONS, **options))


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


__all__ = ["asking", "ids_of", "image_part", "picture", "usage_of"]
