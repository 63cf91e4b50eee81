"""Regular expressions by which byte-level vocabularies cut a text, by the names that GGUF has for them.

A GGUF file names its pre-tokeniser (``tokenizer.ggml.pre``) and leaves out the expressions. They are those of the
models' own tokenizer.json files; which model has which is in llama.cpp's ``src/llama-vocab.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inference.errors import UnsupportedFormat

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(digits: str) -> str:
    """Words with the character before them, numbers of so many digits, punctuation with the lines behind it."""
    return rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _marked_words() -> str:
    """As ``_words`` with single digits; marks belong to the letters."""
    return rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cased_words(
    endings: str, digits: str, *, upper: str = _UPPER, lower: str = _LOWER, behind: str = r"[\r\n/]"
) -> str:
    """As ``_words``, with a cut before a capital letter behind a small one."""
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{before}{upper}*{lower}+{endings}|{before}{upper}+{lower}*{endings}"
        rf"|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+{behind}*|{_SPACES}"
    )


def _kimi() -> str:
    """As ``_cased_words``, with Chinese characters apart."""
    upper, lower = (f"{letters[:-1]}&&[^\\p{{Han}}]]" for letters in (_UPPER, _LOWER))
    words = _cased_words(f"{_ENDINGS}?", "{1,3}", upper=upper, lower=lower, behind=r"[\r\n]")
    return rf"\p{{Han}}+|{words}"


@dataclass(frozen=True, slots=True)
class PreTokeniser:
    """How a text is cut.

    Attributes:
        splits: Expressions, one after the other; what one matches is cut out for the next ones to cut further.
        whole_words_first: See ``Vocabulary``.
        adds_bos: Whether a beginning-of-sequence token is put in front, where the file doesn't state it.
    """

    splits: tuple[str, ...]
    whole_words_first: bool = False
    adds_bos: bool = False


_LLAMA3 = PreTokeniser((_words("{1,3}"),), whole_words_first=True, adds_bos=True)
_THREE_DIGITS = PreTokeniser((_words("{1,3}"),))
_ONE_DIGIT = PreTokeniser((_words(""),))
_PLAIN = PreTokeniser((_GPT2,))
_DIGITS = PreTokeniser((r"\p{N}", _GPT2))
_DEEPSEEK3 = PreTokeniser(
    (
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    )
)
_WORDS_IN_ROWS = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
"""K-EXAONE's: words with single spaces between them are one piece."""
_SEED = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_JAIS2 = (
    _words("{1,3}").removesuffix(r"|\s+(?!\S)|\s+")
    + "".join(rf"|\s{{{count}}}(?!\S)" for count in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
    + r"|\s"
)
_YOUTU_SCRIPTS = r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_GPT4O = PreTokeniser((_cased_words(f"{_ENDINGS}?", "{1,3}"),))

PRE_TOKENISERS: Mapping[str, PreTokeniser] = {
    "default": PreTokeniser((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0"), _LLAMA3
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _THREE_DIGITS),
    **dict.fromkeys(("glm4", "glm5"), PreTokeniser((_words("{1,3}"),), whole_words_first=True)),
    "minicpm5": PreTokeniser((r"\p{N}{1,3}", _words("+")), whole_words_first=True),
    **dict.fromkeys(("qwen2", "stablelm2", "hunyuan", "deepseek-r1-qwen", "megrez", "solar-open"), _ONE_DIGIT),
    **dict.fromkeys(("kormo", "f2llmv2", "bailingmoe", "bailingmoe2"), _ONE_DIGIT),
    "laguna": PreTokeniser((r"[^\n]+|\n+", _words(""))),
    "qwen35": PreTokeniser((_marked_words(),)),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "granite-docling"), _PLAIN),
    **dict.fromkeys(("mellum", "gigachat", "a.x-4.0", "trillion"), _PLAIN),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS),
    **dict.fromkeys(("mellum2", "minerva-7b"), _DIGITS),
    "bloom": PreTokeniser((_BLOOM,)),
    "falcon": PreTokeniser((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "deepseek-coder": PreTokeniser((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"), _DEEPSEEK3),
    "tekken": PreTokeniser((_cased_words("", ""),), whole_words_first=True, adds_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2", "kanana2"), _GPT4O),
    "kimi-k2": PreTokeniser((_kimi(),)),
    "exaone-moe": PreTokeniser((_WORDS_IN_ROWS,)),
    "seed-coder": PreTokeniser((_SEED,)),
    "jais-2": PreTokeniser((_JAIS2,)),
    "youtu": PreTokeniser((_YOUTU_SCRIPTS, _cased_words(f"{_ENDINGS}?", "")), whole_words_first=True),
}


def pre_tokeniser(name: str, file: str) -> PreTokeniser:
    """Return the pre-tokeniser with this name.

    Raises:
        UnsupportedFormat: It isn't known; another one would give other tokens, and worse text, without a word.
    """
    found = PRE_TOKENISERS.get(name)
    if found is None:
        raise UnsupportedFormat(
            f"{file} has the pre-tokeniser {name[:60]!r} (tokenizer.ggml.pre), which is not known here; known are "
            f"{', '.join(sorted(PRE_TOKENISERS))}. Set vocabulary to a tokenizer.json of the model.",
            param="tokenizer.ggml.pre",
        )
    return found
