"""Fuzz the parsers of checkpoints: ``python -m tests.faults.fuzz --cases 10000000 --seed 1``.

A case is a file of the corpus, changed by mutators that know its structure: most bytes of a random change would only
break the JSON. Five kinds take turns: safetensors headers, which the library judges too, config.json, tokenizer.json,
GGUF and ggjt headers. A case is a function of the seed and its number: ``--seed 1 --first 4711 --cases 1`` runs one
again.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import deserialize

from inference.errors import CheckpointError
from inference.modelling.encodings.quantisation_config import read_quantisation_config
from inference.modelling.encodings.table import decode_table
from inference.modelling.families.config import CheckpointConfig, CheckpointView, Facts, TensorTable
from inference.modelling.families.registry import family_builder
from inference.modelling.gguf.container import GgufArray, read_gguf
from inference.modelling.gguf.ggjt import read_ggjt, read_ggjt_tokens
from models_registry.detection.architecture import detect_format, detect_model_type
from models_registry.detection.directory import resolve
from models_registry.detection.json_file import read_object
from models_registry.detection.safetensors_header import read_header
from models_registry.detection.stored_values import read_small
from models_registry.detection.tokenizer_files import find_chat_template, read_tokenizer_files
from tests.faults.artefacts import ggjt_files, gguf_files
from tests.faults.artefacts.case import write_llama
from tests.faults.artefacts.headers import HOSTILE, LEGAL, MORE_HOSTILE
from tests.faults.artefacts.quantised import CASES as QUANTISED
from tests.faults.artefacts.tokenizers import tokenizer_cases
from tests.faults.campaigns import add_argument, record
from tests.inference.modelling.families.published_configs import PUBLISHED
from tests.models_registry.detection.builders import LLAMA_CONFIG, framed, small_hybrid, write_checkpoint

ROOT = Path(__file__).resolve().parents[2]
MAX_CPU_S = 0.1
MAX_GROWTH_BYTES = 64 << 20
MAX_MESSAGE_CHARS = 2000
MAX_ITEMS = 40
MAX_SEED_BYTES = 8 << 10
"""Larger files of the corpus are tested as they are; changing them would take most of the time."""
MAX_CHANGED_BYTES = 256 << 10
"""A file that has grown beyond this isn't tried: the parser's time is linear, some 0.15 s for a MiB."""
REPORT_EVERY = 10_000
WARM_UP_CASES = 300
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 16, 64, 255, 256, 2**31 - 1, 2**31, 2**32, 2**40, 2**53, 2**63, 2**64, -(2**63), 10**30, 10**400,
    0.5, -0.0, 1e308, 1e-320, float("inf"), float("-inf"), float("nan"), True, False, None,
)  # fmt: skip
TEXTS = (
    "", "a", "\0", "\ud800", "../a", "/etc/passwd", "F32", "BF16", "dtype", "shape", "data_offsets", "__metadata__",
    "__class__", "llama", "mamba2", "qwen3_moe", "deepseek_v3", "granitemoehybrid", "os.system", "\x1b[2J", "é" * 300,
    "x" * 5000, "(a+)+$", "{{ 7 * 7 }}", "1e999", "special", "content", "Sequence", "BPE", "added_tokens", "name", "id",
    "chat_template", "bos_token", "eos_token", "added_tokens_decoder", "template", "model_type", "architectures",
    "rope_scaling", "rope_type", "factor", "quantization_config", "quant_method", "gptq",
    "config_groups", "bits", "layer_types", "head_dim", "__float__",
)  # fmt: skip
BYTES = (
    b"",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b"\\",
    b"\0",
    b"\xff",
    b"\\ud800",
    b"9" * 400,
    b"[" * 2000,
    b" ",
)


_dumps = json.JSONEncoder().encode


class Pairs(list[tuple[str, Any]]):
    """A JSON object whose names may occur twice."""


def parsed(text: bytes) -> Any:
    """The JSON value with its objects as ``Pairs``."""
    return json.loads(text, object_pairs_hook=Pairs)


def written(value: Any, known: Mapping[int, str] = {}) -> str:
    """The JSON of a value, with names twice, NaN and halves of surrogate pairs as they are.

    Args:
        known: The JSON of objects and lists by their ``id``: a change copies only what is around it.
    """
    if not isinstance(value, list):
        return _dumps(value)
    if (text := known.get(id(value))) is not None:
        return text
    if isinstance(value, Pairs):
        return "{" + ",".join([f"{_dumps(name)}:{written(item, known)}" for name, item in value]) + "}"
    return "[" + ",".join([written(item, known) for item in value]) + "]"


def texts_of(value: Any, known: dict[int, str]) -> None:
    """Add the JSON of a value's objects and lists, which must not be freed or changed afterwards."""
    if isinstance(value, list):
        for item in value:
            texts_of(item[1] if isinstance(value, Pairs) else item, known)
        known[id(value)] = written(value, known)


class Mutator:
    """Changes JSON values and bytes by random numbers of its own."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def changed(self, value: Any) -> Any:
        """The value with one to four changes, anywhere in it."""
        for _ in range(1 + int(self._draw.random() ** 2 * 4)):
            value = self._change(value)
        return value

    def bytes_changed(self, content: bytes) -> bytes:
        """The bytes with one to four changes."""
        draw = self._draw
        for _ in range(1 + int(draw.random() ** 2 * 4)):
            at = draw.randrange(len(content) + 1)
            match draw.randrange(5):
                case 0:
                    content = content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]
                case 1:
                    content = content[:at]
                case 2:
                    content = content[:at] + draw.choice(BYTES) + content[at:]
                case 3:
                    end = draw.randrange(at, len(content) + 1)
                    content = content[:at] + content[end:]
                case _:
                    end = draw.randrange(at, min(len(content), at + 300) + 1)
                    content = content[:end] + content[at:end] * draw.choice((1, 1, 2, 9)) + content[end:]
        return content

    def _change(self, value: Any) -> Any:
        draw = self._draw
        if not isinstance(value, list) or not value or draw.random() < 0.1:
            return self._other(value)
        value = type(value)(value)
        at = draw.randrange(len(value))
        if draw.random() < 0.6:
            item = value[at]
            value[at] = (item[0], self._change(item[1])) if isinstance(value, Pairs) else self._change(item)
            return value
        other = value[draw.randrange(len(value))]
        match draw.randrange(4):
            case 0:
                del value[at]
            case 1:
                value.insert(at, other)
            case 2 if isinstance(value, Pairs):
                value[at] = (draw.choice((*TEXTS, other[0])), value[at][1])
            case 3 if isinstance(value, Pairs):
                value.insert(at, (draw.choice(TEXTS), self._other(other[1])))
            case _:
                value[at] = other
        return value

    def _other(self, value: Any) -> Any:
        draw = self._draw
        match draw.randrange(8):
            case 0 | 1:
                return draw.choice(NUMBERS)
            case 2:
                return draw.choice(TEXTS)
            case 3 if isinstance(value, int | float) and not isinstance(value, bool):
                return value + draw.choice((-1, 1)) if draw.random() < 0.7 else value * draw.choice((2, -1, 10))
            case 4 if isinstance(value, str):
                at = draw.randrange(len(value) + 1)
                return value[:at] + draw.choice(TEXTS) + value[at:]
            case 5:
                return [value] * draw.choice((0, 1, 2, 9, 100))
            case 6:
                return Pairs([(draw.choice(TEXTS), value)])
            case _:
                deep: Any = value
                for _ in range(draw.choice((1, 8, 31, 40))):
                    deep = [deep] if draw.random() < 0.5 else Pairs([("a", deep)])
                return deep


@dataclass(slots=True)
class Fuzzer:
    """Runs cases, and counts what came of them.

    Attributes:
        directory: For the files of the case.
        failures: One sentence each, with the command that runs the case again.
        verdicts: Number of cases by kind and class of the error.
        growth_bytes: Most memory that a check took; what building its file took is freed or counted before.
    """

    directory: Path
    seed: int
    failures: list[str] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    growth_bytes: int = 0
    _growth_bytes: int = 0
    """Of the last check."""
    _kinds: list[tuple[str, Callable[[random.Random], Callable[[], None]]]] = field(default_factory=list)
    _headers: list[bytes] = field(default_factory=list)
    _configs: list[Any] = field(default_factory=list)
    _tokenizers: list[Any] = field(default_factory=list)
    _tables: list[dict[str, Any]] = field(default_factory=list)
    _places: list[Path] = field(default_factory=list)
    _known: dict[int, str] = field(default_factory=dict)
    """The JSON of all values of the corpus; writing them took half of the time."""

    def __post_init__(self) -> None:
        files = {**LEGAL, **HOSTILE, **MORE_HOSTILE}.values()
        self._headers = [file for file in files if isinstance(file, bytes) and 8 < len(file) < MAX_SEED_BYTES]
        self._headers += [*LEGAL.values()] * 8  # so that many changed headers are still accepted, and compared
        shapes, config = small_hybrid()
        write_checkpoint(self.directory / "oxidizr", shapes, config)
        (self.directory / "llama").mkdir()
        write_llama(self.directory / "llama")
        quantised = [case for case in QUANTISED if case.refusal is None]
        for number, case in enumerate(quantised):
            (self.directory / f"quantised-{number}").mkdir()
            case.make(self.directory / f"quantised-{number}")
        for name in ("llama", "oxidizr", *(f"quantised-{number}" for number in range(len(quantised)))):
            place = self.directory / name
            self._configs.append(parsed((place / "config.json").read_bytes()))
            self._tables.append(read_header(place / "model.safetensors"))
            self._places.append(place)
        for model_type, values in PUBLISHED.values():  # their keys, with the sizes of the tensors
            self._configs.append(parsed(json.dumps({**values, **LLAMA_CONFIG, "model_type": model_type}).encode()))
            self._tables.append(self._tables[0])
            self._places.append(self._places[0])
        small = [case.content for case in tokenizer_cases() if len(case.content) < 4 * MAX_SEED_BYTES]
        for content in small:
            try:
                self._tokenizers.append(_small(parsed(content)))
            except (ValueError, RecursionError):
                continue
        for value in (*self._configs, *self._tokenizers):
            texts_of(value, self._known)
        # A config costs ten headers; the numbers give each kind a like share of the time.
        self._kinds = [("header", self._header)] * 10 + [("config", self._config), ("tokenizer", self._tokenizer)]
        self._kinds += [("gguf", self._gguf)] * 8 + [("ggjt", self._ggjt)] * 2

    def run(self, number: int) -> None:
        """Run one case."""
        kind, make = self._kinds[number % len(self._kinds)]
        verdict, seconds = self._verdict(number, make)
        if seconds > MAX_CPU_S:  # a collection of garbage may have been in the way; the case's own time repeats itself
            verdict, seconds = self._verdict(number, make)
            if seconds > MAX_CPU_S:
                self.fail(number, f"{kind}: {seconds:.2f} s")
        if self._growth_bytes > MAX_GROWTH_BYTES:
            self.fail(number, f"{kind}: {self._growth_bytes >> 20} MiB of memory")
        self.growth_bytes = max(self.growth_bytes, self._growth_bytes)
        if "\n" in verdict:
            self.fail(number, f"{kind}: {verdict}")
            verdict = "failed"
        self.verdicts[f"{kind} {verdict}"] += 1

    def _verdict(self, number: int, make: Callable[[random.Random], Callable[[], None]]) -> tuple[str, float]:
        """What came of a case, on several lines if it must not happen, and its processor seconds."""
        check = make(random.Random(self.seed << 40 | number))
        reset_peak()
        before, verdict, began = peak_bytes(), "accepted", time.thread_time()
        try:
            check()
        except (KeyboardInterrupt, SystemExit):
            raise
        except CheckpointError as error:
            verdict = type(error).__name__
            if len(error.message) > MAX_MESSAGE_CHARS:
                verdict = f"a message of {len(error.message)} characters:\n{error.message[:300]}"
        except BaseException:
            verdict = traceback.format_exc()
        seconds = time.thread_time() - began
        self._growth_bytes = peak_bytes() - before
        return verdict, seconds

    def fail(self, number: int, what: str) -> None:
        self.failures.append(
            f"{what}\n  again: python -m tests.faults.fuzz --seed {self.seed} --first {number} --cases 1"
        )

    def _header(self, draw: random.Random) -> Callable[[], None]:
        mutator, content = Mutator(draw), draw.choice(self._headers)
        end = 8 + int.from_bytes(content[:8], "little")
        try:
            value = parsed(content[8:end])
        except (ValueError, RecursionError):
            value = None
        if value is None or draw.random() < 0.3:
            content = mutator.bytes_changed(content)
        else:
            content = framed(written(mutator.changed(value)), content[end:])
        if draw.random() < 0.1:
            length = draw.choice(
                (0, 1, 2, len(content) - 8, len(content) - 7, 2**31, 2**63, 2**64 - 1, draw.randrange(99))
            )
            content = max(length, 0).to_bytes(8, "little") + content[8:]
        path = self.directory / "fuzzed.safetensors"
        path.write_bytes(content)

        def check() -> None:
            found = read_header(path)
            oracle = dict(deserialize(content))  # raises if the library refuses what we accept
            ours = {name: (info.dtype, list(info.shape), info.end - info.begin) for name, info in found.items()}
            theirs = {name: (info["dtype"], info["shape"], len(info["data"])) for name, info in oracle.items()}
            if ours != theirs:
                raise AssertionError(f"read as {ours}, by the library as {theirs}")

        return check

    def _changed_file(
        self, name: str, draw: random.Random, value: Any, encoded: Callable[[Any], bytes]
    ) -> tuple[Path, int]:
        """Write a binary file with changes of its bytes or its values; its path and size."""
        mutator = Mutator(draw)
        content = mutator.bytes_changed(encoded(value)) if draw.random() < 0.3 else encoded(mutator.changed(value))
        path = self.directory / name
        path.write_bytes(content)
        return path, len(content)

    def _gguf(self, draw: random.Random) -> Callable[[], None]:
        value = draw.choice((gguf_files.SMALL, gguf_files.SMALL, gguf_files.EMPTY))
        path, size = self._changed_file("fuzzed.gguf", draw, value, gguf_files.encoded)

        def check() -> None:
            found, end = read_gguf(path), 0
            for place in sorted(found.tensors.values(), key=lambda place: place.begin):
                if place.begin < max(end, found.data_start) or place.end > size:
                    raise AssertionError(f"a tensor is said to be at {place}, with {size} bytes in the file")
                end = place.end
            for key, item in found.keys.items():
                if isinstance(item, GgufArray):
                    items = found.strings(key) if item.element == "string" else found.numbers(key)
                    if len(items) != item.count:
                        raise AssertionError(f"{key} has {len(items)} elements, stated are {item.count}")

        return check

    def _ggjt(self, draw: random.Random) -> Callable[[], None]:
        path, size = self._changed_file("fuzzed.bin", draw, ggjt_files.SMALL, ggjt_files.encoded)

        def check() -> None:
            found, end = read_ggjt(path), 0
            for place in found.tensors.values():  # in the order of the file
                if place.begin < end or place.end > size:
                    raise AssertionError(f"a tensor is read from {place.begin} to {place.end} of {size}")
                end = place.end
            tokens, stated = read_ggjt_tokens(path), found.keys["llama.vocab_size"]
            if len(tokens) != stated:
                raise AssertionError(f"{len(tokens)} tokens, stated are {stated}")

        return check

    def _config(self, draw: random.Random) -> Callable[[], None]:
        which, mutator = draw.randrange(len(self._configs)), Mutator(draw)
        path = self.directory / "config.json"
        path.write_bytes(self._changed(mutator, draw, self._configs[which]))

        def check() -> None:
            """As in ``models_registry.detection.inspection``, with the header read before."""
            config, facts = CheckpointConfig(read_object(path)), Facts()
            stated = config.get("quantization_config", "compression_config")
            stated = None if stated is None else read_quantisation_config(stated)
            read = partial(read_small, self._places[which])
            tensors = decode_table(self._tables[which], stated, read, facts).tensors
            model_type, _ = detect_model_type(tensors, detect_format(tensors, config, facts), config, facts)
            typed = config if model_type == "oxidizr" else CheckpointConfig({**config.values, "model_type": model_type})
            spec = family_builder(model_type)(CheckpointView(typed, TensorTable(tensors), facts))
            json.dumps(spec.to_dict(), allow_nan=False)

        return check

    def _tokenizer(self, draw: random.Random) -> Callable[[], None]:
        mutator, directory = Mutator(draw), self.directory / "llama"
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (directory / name).write_bytes(self._changed(mutator, draw, draw.choice(self._tokenizers)))

        def check() -> None:
            resolved = resolve(directory)
            files = read_tokenizer_files(resolved)
            find_chat_template(resolved, files.tokenizer_config)

        return check

    def _changed(self, mutator: Mutator, draw: random.Random, value: Any) -> bytes:
        """The text of a changed value, or the changed text of the value."""
        content = self._known[id(value)].encode()
        if draw.random() < 0.85:
            changed = written(mutator.changed(value), self._known).encode()
            return changed if len(changed) <= MAX_CHANGED_BYTES else content
        return mutator.bytes_changed(content)


def _small(value: Any) -> Any:
    """A tokenizer.json without most of its vocabulary."""
    if isinstance(value, Pairs):
        return Pairs((name, _small(item)) for name, item in value[:MAX_ITEMS])
    return [_small(item) for item in value[:MAX_ITEMS]] if isinstance(value, list) else value


def reset_peak() -> None:
    """Let ``peak_bytes`` begin anew with the memory of now; without /proc it goes on from the start of the process."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Most resident memory of this process since ``reset_peak``."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> int:
    """Return 0 if no case failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end earlier, after so much time")
    add_argument(parser)
    given = parser.parse_args()
    if given.record and given.first:
        parser.error("--record counts the cases of a seed from the first one: leave out --first")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="blazr-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as place:
        fuzzer = Fuzzer(Path(place), given.seed)
        for number in range(WARM_UP_CASES):  # imports and caches are no cost of a case
            fuzzer.run(number)
        fuzzer.failures.clear()
        fuzzer.verdicts.clear()
        fuzzer.growth_bytes, done = 0, 0
        while done < given.cases and time.monotonic() - began < given.seconds and len(fuzzer.failures) < 10:
            fuzzer.run(given.first + done)
            done += 1
            if done % REPORT_EVERY == 0 and sys.stderr.isatty():
                rate = done / (time.monotonic() - began)
                sys.stderr.write(f"\r{done:,} of {given.cases:,} cases, {rate:,.0f}/s, {len(fuzzer.failures)} failures")
    for failure in fuzzer.failures:
        sys.stdout.write(f"{failure}\n")
    report = {
        "cases": done,
        "failures": len(fuzzer.failures),
        "seconds": round(time.monotonic() - began, 1),
        "growth_mib": fuzzer.growth_bytes >> 20,
        "verdicts": dict(fuzzer.verdicts.most_common()),
    }
    sys.stdout.write(json.dumps(report) + "\n")
    figures = {"growth_mib": report["growth_mib"]}
    record(
        given.record, "fuzz", seed=given.seed, size=done, failures=len(fuzzer.failures),
        seconds=time.monotonic() - began, figures=figures,
    )  # fmt: skip
    return 1 if fuzzer.failures else 0


if __name__ == "__main__":
    sys.exit(main())
