"""Find the tokenizer that a checkpoint was made with, and its BOS, EOS and chat template.

Order of trust: what the operator says, ``tokenizer_vocab`` in config.json, tokenizer files beside the weights, the
exact number of embedding rows, and last a range of numbers, with a warning. Outside the plausible ranges the answer
is "none": a wrong tokenizer gives fluent nonsense, a missing one an error that says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from inference.errors import InvalidRequest, UnsupportedFormat
from inference.modelling.families.config import CheckpointConfig, Confidence, Facts
from inference.modelling.gguf.vocabulary_file import VOCABULARY_FILE
from inference.modelling.spec import ModelSpec
from inference.text.tokenisation.tiktoken_file import KIMI_FILE, PUBLISHED_FILES, control_tokens
from inference.values.tokenizer_spec import VOCABULARIES, TokenizerSpec
from models_registry.detection.directory import CheckpointDirectory
from models_registry.detection.facts import CHAT_TEMPLATE
from models_registry.detection.file_vocabularies import add_file_vocabulary, gguf_has_vocabulary, kind_of_file
from models_registry.detection.json_file import read_bytes
from models_registry.detection.other_tokenizer import check_other, find_other
from models_registry.detection.tokenizer_files import (
    MAX_TOKENIZER_BYTES,
    TokenizerFiles,
    find_chat_template,
    read_tokenizer_config,
    read_tokenizer_files,
    token_ids,
)


@dataclass(frozen=True, slots=True)
class BuiltinVocabulary:
    """Control tokens of a built-in vocabulary, and the embedding sizes at which it is plausible.

    Attributes:
        low, high: Closed range of embedding rows in which the vocabulary is a fair guess.
        turn_ends: Ids that end a turn, besides EOS.
        agent_base: Id of ``<|system|>``, the first of the agent tokens.
    """

    low: int
    high: int
    bos: tuple[str, int] | None
    eos: tuple[str, int]
    turn_ends: tuple[int, ...]
    agent_base: int


BUILTIN: Mapping[str, BuiltinVocabulary] = {
    "cl100k_base": BuiltinVocabulary(100_256, 100_352, None, ("<|endoftext|>", 100_257), (), 100_277),
    "o200k_base": BuiltinVocabulary(199_998, 200_192, None, ("<|endoftext|>", 199_999), (), 200_019),
    "llama3": BuiltinVocabulary(
        128_000, 128_512, ("<|begin_of_text|>", 128_000), ("<|end_of_text|>", 128_001), (128_008, 128_009), 128_300
    ),
    "deepseek_v3": BuiltinVocabulary(
        128_800, 129_024, ("<｜begin▁of▁sentence｜>", 0), ("<｜end▁of▁sentence｜>", 1), (), 128_900
    ),
}
"""Ids as the vocabularies define them (the tests compare them with the tokenizer library)."""

_AGENT_IM_END, _AGENT_STOP, _AGENT_ASSISTANT = 4, 40, 2
"""Offsets from ``agent_base``."""

TURN_END_TOKENS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|stop|>")
"""Control tokens that end a turn in some chat format; a model that has one means it so."""

PADDINGS = (8, 64, 128, 256)
"""Trainers round the embedding up to a multiple of one of these."""

PUBLISHED_SIZES: Mapping[int, str] = {129_280: "deepseek_v3"}
"""Embedding rows of published models that no rule explains."""

OXIDIZR_TEMPLATE = (
    "{%- if bos_token %}{{- bos_token }}{%- endif %}"
    "{%- if tools %}"
    "{{- '<|system|>\\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content ~ '\\n\\n' }}{%- endif %}"
    "{{- 'Functions that you may call, one JSON object per line:\\n' }}"
    "{%- for tool in tools %}{{- tool.function | tojson ~ '\\n' }}{%- endfor %}"
    '{{- \'A call is written as <|function|>{"name": NAME, "args": {}}<|/function|>.\\n\' }}'
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}{{- '<|result|>' ~ message.content ~ '<|/result|>\\n' }}"
    "{%- elif message.role not in ('system', 'user', 'assistant') %}"
    "{{- raise_exception('this model knows the roles system, user, assistant and tool, not ' ~ message.role) }}"
    "{%- elif not (tools and loop.first and message.role == 'system') %}"
    "{{- '<|' ~ message.role ~ '|>\\n' ~ message.content }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{- '<|function|>{\"name\": ' ~ call.function.name | tojson ~ ', \"args\": ' }}"
    "{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}"
    "{{- '}<|/function|>' }}"
    "{%- endfor %}"
    "{{- '\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
)
"""``<|system|>\\nTEXT\\n<|user|>\\nTEXT\\n<|assistant|>\\n``: what oxidizr's models are asked with. Calls and
results are written as https://github.com/ml-rust/splintr/blob/main/docs/special_tokens.md has them."""


def choose_tokenizer(
    resolved: CheckpointDirectory, spec: ModelSpec, config: CheckpointConfig, facts: Facts
) -> TokenizerSpec:
    """Decide on the tokenizer; the reason goes to ``facts`` as ``vocabulary``.

    Raises:
        InvalidRequest: The operator's ``vocabulary`` is unknown, or names a file that isn't there; or the checkpoint of
            ``tokenizer_from`` has no tokenizer, or one that doesn't fit.
        UnsupportedFormat: config.json's ``tokenizer_vocab`` is unknown.
        CorruptCheckpoint: A tokenizer file is broken or over its limit.
    """
    other = find_other(resolved, facts)
    files = read_tokenizer_files(other or resolved)
    if other is None:
        found = _choose(resolved, spec.vocab_size, config, facts)
    else:
        found = check_other(other, _by_files(other, spec.vocab_size, Facts()), files, facts)
    if found.kind == "builtin":
        found = _with_builtin_tokens(found)
    elif found.kind in ("gguf", "ggjt", "sentencepiece", "tekken"):
        found, files = add_file_vocabulary(found, files, facts)
    elif found.kind == "tiktoken":
        own = control_tokens(Path(str(found.path)), MAX_TOKENIZER_BYTES)
        files = replace(files, added_tokens={**own, **files.added_tokens})
    found = _with_file_tokens(found, files, config, facts)
    return _with_template(found, (resolved,) if other is None else (resolved, other), files, spec, facts)


# --- which one ---------------------------------------------------------------------------------


def _choose(resolved: CheckpointDirectory, rows: int, config: CheckpointConfig, facts: Facts) -> TokenizerSpec:
    override = facts.overrides.get("vocabulary")
    if override is not None:
        facts.add("vocabulary", override, "set by the operator", Confidence.OVERRIDE)
        return _by_name(str(override), resolved, rows)
    stated = config.get("tokenizer_vocab")
    if stated is not None and stated != "custom":
        if not isinstance(stated, str) or stated not in VOCABULARIES:
            raise UnsupportedFormat(
                f"config.json: tokenizer_vocab {str(stated)[:60]!r} is not a known vocabulary; known are "
                f"{', '.join(VOCABULARIES)}.",
                param="tokenizer_vocab",
            )
        facts.add("vocabulary", stated, "config.json (tokenizer_vocab)")
        return TokenizerSpec("builtin", rows, name=stated)
    by_file = _by_files(resolved, rows, facts)
    if by_file is not None:
        return by_file
    if stated == "custom":
        raise UnsupportedFormat(
            "config.json: tokenizer_vocab is 'custom', but there is no tokenizer.json or .tiktoken file; add it, "
            f"or use one of {', '.join(VOCABULARIES)}.",
            param="tokenizer_vocab",
        )
    return _by_size(rows, facts)


def _by_name(name: str, resolved: CheckpointDirectory, rows: int) -> TokenizerSpec:
    """What the operator's word means: a built-in name, ``none``, ``files``, or a file."""
    if name in VOCABULARIES:
        return TokenizerSpec("builtin", rows, name=name)
    if name == "none":
        return TokenizerSpec("none", rows)
    if name == "files":
        found = _by_files(resolved, rows, Facts())
        if found is None:
            raise InvalidRequest(
                f"vocabulary is set to 'files', but {resolved.directory.name} has no tokenizer.json, .tiktoken file, "
                "tekken.json, tokenizer.model or GGUF file with tokens.",
                param="vocabulary",
            )
        return found
    path = resolved.directory / Path(name).expanduser()
    kind = kind_of_file(path.name)
    if kind is not None and "\0" not in name and path.is_file():
        return TokenizerSpec(kind, rows, path=str(path))
    raise InvalidRequest(
        f"vocabulary {name[:80]!r} is neither known ({', '.join(VOCABULARIES)}, files, none) nor an existing "
        "tokenizer.json, .tiktoken, tekken.json, tokenizer.model or .gguf file.",
        param="vocabulary",
    )


def _by_files(resolved: CheckpointDirectory, rows: int, facts: Facts) -> TokenizerSpec | None:
    names = resolved.with_role("tokenizer")
    weights = resolved.weight_files[0]
    if kind_of_file(weights) == "gguf" and gguf_has_vocabulary(resolved.directory / weights):
        return TokenizerSpec("gguf", rows, path=str(resolved.directory / weights))
    if kind_of_file(weights) == "ggjt":
        return TokenizerSpec("ggjt", rows, path=str(resolved.directory / weights))
    if "tokenizer.json" in names:
        facts.add("vocabulary", "tokenizer.json", "tokenizer.json lies beside the weights")
        return TokenizerSpec("huggingface", rows, path=str(resolved.directory / "tokenizer.json"))
    if VOCABULARY_FILE in names:
        return TokenizerSpec("gguf", rows, path=str(resolved.directory / VOCABULARY_FILE))
    rank_files = [name for name in names if name.endswith(".tiktoken")]
    if rank_files:
        name = rank_files[0]
        stem = name.removesuffix(".tiktoken")
        if stem in VOCABULARIES:
            facts.add("vocabulary", stem, f"{name} lies beside the weights", Confidence.HIGH)
            return TokenizerSpec("builtin", rows, name=stem)
        if len(rank_files) > 1:
            facts.warn(f"several .tiktoken files lie beside the weights; {name} is used.")
        facts.add("vocabulary", name, f"{name} lies beside the weights")
        return TokenizerSpec("tiktoken", rows, path=str(resolved.directory / name))
    if KIMI_FILE in names:
        facts.add("vocabulary", KIMI_FILE, f"{KIMI_FILE} lies beside the weights, as Kimi's does")
        return TokenizerSpec("tiktoken", rows, path=str(resolved.directory / KIMI_FILE))
    if "tekken.json" in names:
        return TokenizerSpec("tekken", rows, path=str(resolved.directory / "tekken.json"))
    if "tokenizer.model" in names:
        if is_rank_file(resolved.directory / "tokenizer.model"):
            # Meta's Llama 3 ships its ranks under this name, without the control tokens.
            facts.add("vocabulary", "llama3", "tokenizer.model is a list of ranks, as Llama 3's is", Confidence.HIGH)
            if VOCABULARIES["llama3"][0] <= rows <= BUILTIN["llama3"].high:
                return TokenizerSpec("builtin", rows, name="llama3")
            facts.add("vocabulary", "tokenizer.model", "tokenizer.model is a list of ranks", Confidence.HIGH)
            return TokenizerSpec("tiktoken", rows, path=str(resolved.directory / "tokenizer.model"))
        return TokenizerSpec("sentencepiece", rows, path=str(resolved.directory / "tokenizer.model"))
    return None


def is_rank_file(path: Path) -> bool:
    """Whether a tokenizer.model is a list of ranks, as tiktoken has them, and no SentencePiece model."""
    line = read_bytes(path, MAX_TOKENIZER_BYTES).partition(b"\n")[0][:512].split()
    return len(line) == 2 and line[1].isdigit() and line[0].isascii()


def _by_size(rows: int, facts: Facts) -> TokenizerSpec:
    for name, (bare, with_agents) in VOCABULARIES.items():
        if rows == with_agents:
            facts.add("vocabulary", name, f"vocab_size is exactly {rows} ({name} with agent tokens)")
            return TokenizerSpec("builtin", rows, name=name)
        if rows == bare:
            facts.add(
                "vocabulary", name, f"vocab_size is exactly {rows} ({name} without agent tokens)", Confidence.HIGH
            )
            return TokenizerSpec("builtin", rows, name=name)
    for name, totals in VOCABULARIES.items():
        for total in totals:
            padding = next((padding for padding in PADDINGS if -(-total // padding) * padding == rows), None)
            if padding is not None:
                evidence = f"vocab_size {rows} is {name}'s {total} rounded up to a multiple of {padding}"
                facts.add("vocabulary", name, evidence, Confidence.HIGH)
                return TokenizerSpec("builtin", rows, name=name)
    if rows in PUBLISHED_SIZES:
        name = PUBLISHED_SIZES[rows]
        facts.add("vocabulary", name, f"published models with {name} have {rows} rows", Confidence.MEDIUM)
        return TokenizerSpec("builtin", rows, name=name)
    for name, vocabulary in BUILTIN.items():
        if vocabulary.low <= rows <= vocabulary.high:
            bare, with_agents = VOCABULARIES[name]
            between = bare < rows < with_agents
            facts.add(
                "vocabulary",
                name,
                f"vocab_size {rows} is near {name}'s {bare} and {with_agents}",
                Confidence.MEDIUM if between else Confidence.LOW,
            )
            facts.warn(
                f"the vocabulary is a guess: {rows} rows are near {name}'s {bare} (or {with_agents} with agents); "
                "set vocabulary if the text is nonsense."
            )
            return TokenizerSpec("builtin", rows, name=name)
    facts.add("vocabulary", "none", f"no tokenizer file, and {rows} rows fit no known vocabulary", Confidence.LOW)
    facts.warn(
        f"no tokenizer is known: {rows} rows fit none of {', '.join(VOCABULARIES)}. Token-id prompts work; for text "
        "add a tokenizer.json, or set vocabulary."
    )
    return TokenizerSpec("none", rows)


# --- control tokens ----------------------------------------------------------------------------


def _with_builtin_tokens(found: TokenizerSpec) -> TokenizerSpec:
    """BOS, EOS and end-of-turn ids of a built-in vocabulary, those that the embedding has rows for."""
    vocabulary = BUILTIN[str(found.name)]
    agents = (vocabulary.agent_base + _AGENT_IM_END, vocabulary.agent_base + _AGENT_STOP)
    ends = [end for end in (vocabulary.eos[1], *vocabulary.turn_ends, *agents) if end < found.vocab_size]
    special = {"eos_token": vocabulary.eos[0]}
    bos = None
    if vocabulary.bos is not None and vocabulary.bos[1] < found.vocab_size:
        special["bos_token"], bos = vocabulary.bos
    return replace(found, bos_token_id=bos, eos_token_ids=tuple(ends), special_tokens=tuple(sorted(special.items())))


def _with_file_tokens(
    found: TokenizerSpec, files: TokenizerFiles, config: CheckpointConfig, facts: Facts
) -> TokenizerSpec:
    """Add what config.json, generation_config.json and the tokenizer's files say."""
    named = dict(found.special_tokens) | dict(files.special_tokens)
    ends = list(found.eos_token_ids)
    ends += token_ids(files.generation_config.get("eos_token_id")) + token_ids(config.get(*_places("eos_token_id")))
    if found.kind != "builtin":
        # In a built-in vocabulary the texts below have known ids, which are in already.
        ends += [files.added_tokens[text] for text in TURN_END_TOKENS if text in files.added_tokens]
    if named.get("eos_token") in files.added_tokens:
        ends.append(files.added_tokens[named["eos_token"]])
    outside = sorted({end for end in ends if end >= found.vocab_size})
    if outside:
        facts.warn(
            f"end tokens {outside[:5]} lie outside the {found.vocab_size} rows of the embedding; they are ignored."
        )
    ends = list(dict.fromkeys(end for end in ends if end < found.vocab_size))
    bos = _bos(found, files, named, config)
    if bos is not None and bos >= found.vocab_size:
        facts.warn(f"the BOS token {bos} lies outside the {found.vocab_size} rows of the embedding; none is used.")
        bos = None
    facts.add("bos_token_id", bos, "tokenizer files" if found.kind != "builtin" else f"{found.name}'s own")
    facts.add("eos_token_ids", ends, "union of all that the files and the vocabulary name")
    if not ends:
        facts.warn("no end-of-sequence token is known: a generation ends at its token limit or a stop string.")
    added = found.added_tokens
    if found.kind == "tiktoken":
        added = tuple(sorted(files.added_tokens.items(), key=lambda item: item[1]))
    return replace(
        found,
        bos_token_id=bos,
        eos_token_ids=tuple(ends),
        special_tokens=tuple(sorted(named.items())),
        added_tokens=tuple((text, token_id) for text, token_id in added if token_id < found.vocab_size),
    )


def _places(key: str) -> tuple[str, ...]:
    """Where config.json may state a token: a text model within another one has its own."""
    return (key, f"text_config.{key}", f"llm_config.{key}", f"thinker_config.text_config.{key}")


def _bos(found: TokenizerSpec, files: TokenizerFiles, named: Mapping[str, str], config: CheckpointConfig) -> int | None:
    """The id put before text prompts; None: none, or the files say not to."""
    explicit = files.tokenizer_config.get("add_bos_token")
    if explicit is False:
        return None
    if found.kind == "builtin":
        return found.bos_token_id
    by_name = files.added_tokens.get(named.get("bos_token", ""))
    if explicit is True:
        stated = token_ids(config.get(*_places("bos_token_id")))
        return by_name if by_name is not None else next(iter(stated), None)
    if found.kind == "tiktoken":
        return None if Path(str(found.path)).name in PUBLISHED_FILES else by_name
    return files.bos_by_processor


# --- chat --------------------------------------------------------------------------------------


def _with_template(
    found: TokenizerSpec,
    places: tuple[CheckpointDirectory, ...],
    files: TokenizerFiles,
    spec: ModelSpec,
    facts: Facts,
) -> TokenizerSpec:
    """Return the tokenizer with the chat template of the first of the places that has one.

    Args:
        files: Those of the last place.
    """
    configs = [read_tokenizer_config(place) for place in places[:-1]] + [files.tokenizer_config]
    templates = (find_chat_template(place, config) for place, config in zip(places, configs, strict=True))
    template = next(filter(None, templates), None)
    if template is None and found.chat_template is not None:
        template = found.chat_template, str(found.chat_template_origin)
    # oxidizr's form is made of agent tokens: without their rows it would be cut into letters.
    if template is None and spec.format == "oxidizr" and _has_chat_agents(found):
        template = OXIDIZR_TEMPLATE, "oxidizr's default form of agent tokens"
    return with_chosen_template(found, template, facts)


def with_chosen_template(found: TokenizerSpec, own: tuple[str, str] | None, facts: Facts) -> TokenizerSpec:
    """Return the tokenizer with the template that a person set, or else with the checkpoint's own.

    Args:
        own: Source and origin of the checkpoint's own template; None: it has none.
    """
    override = facts.overrides.get(CHAT_TEMPLATE)
    missing = "no template file, and none in tokenizer_config.json or the weights"
    if override is not None:
        origin = "set by a person"
        beside = missing if own is None else f"instead of that of {own[1]} ({len(own[0])} characters)"
        # Facts.add would show the source itself.
        facts.add_override(CHAT_TEMPLATE, origin, f"{len(override)} characters, {beside}")
        return replace(
            found,
            chat_template=override,
            chat_template_origin=origin,
            own_chat_template=None if own is None else own[0],
        )
    if own is None:
        facts.add(CHAT_TEMPLATE, None, missing)
        return found
    facts.add(CHAT_TEMPLATE, own[1], f"{len(own[0])} characters")
    return replace(found, chat_template=own[0], chat_template_origin=own[1])


def _has_chat_agents(found: TokenizerSpec) -> bool:
    """Whether the embedding has rows for ``<|system|>``, ``<|user|>`` and ``<|assistant|>``."""
    return found.kind == "builtin" and BUILTIN[str(found.name)].agent_base + _AGENT_ASSISTANT < found.vocab_size
