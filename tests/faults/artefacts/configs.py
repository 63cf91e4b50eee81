"""Hostile config.json and index files beside harmless weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.artefacts.case import Case, beside_weights, write_llama
from tests.models_registry.detection.builders import LLAMA_CONFIG, llama_shapes, write_json, write_tensors

HUGE = 10**18
INDEX = "model.safetensors.index.json"


def _config(**changes: Any) -> Callable[[Path], None]:
    return lambda directory: write_llama(directory, {**LLAMA_CONFIG, **changes})


def _text(content: str | bytes) -> Callable[[Path], None]:
    return beside_weights("config.json", content.encode() if isinstance(content, str) else content)


def _spliced(member: str) -> Callable[[Path], None]:
    """The harmless config with a member that ``json.dumps`` would not write."""
    return _text(json.dumps(LLAMA_CONFIG)[:-1] + "," + member + "}")


_SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip
_WRONG = {
    "2^40": 1 << 40, "10^9": 10**9, "0": 0, "-1": -1, "10^18": HUGE, "half": 0.5, "text": "16", "true": True,
    "a list": [16], "infinity": float("inf"), "NaN": float("nan"),
}  # fmt: skip
_NO_SIZE = {("max_position_embeddings", "10^9")}
"""A limit that says nothing of what is allocated: a load takes the context that fits into its memory."""

SIZES = [
    Case(
        f"config: {key} is {name}", _config(**{key: value}), None if (key, name) in _NO_SIZE else f"config\\.json|{key}"
    )
    for key in _SIZES
    for name, value in _WRONG.items()
]

OTHERS = [
    Case("config: 10^5 levels of arrays", _text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"), r"config\.json .*deep"),
    Case("config: 10^5 levels of objects", _text('{"a":' * 100_000 + "1" + "}" * 100_000), r"config\.json .*deep"),
    Case("config: 33 levels", _spliced('"a":' + "[" * 33 + "]" * 33), r"config\.json .*32 levels"),
    Case("config: 10^5 keys", _text(json.dumps({f"k{n}": n for n in range(60_000)})), r"config\.json"),
    Case("config: 10^6 keys", _text(json.dumps({f"k{n}": n for n in range(1_000_000)})), r"config\.json .*limit"),
    Case("config: 350,000 lists", _text('{"a":[' + "[]," * 349_000 + "1]}"), r"config\.json"),
    Case("config: empty", _text(""), r"config\.json"),
    Case("config: an array", _text("[]"), r"config\.json"),
    Case("config: text", _text('"llama"'), r"config\.json"),
    Case("config: null", _text("null"), r"config\.json"),
    Case("config: truncated", _text(json.dumps(LLAMA_CONFIG)[:-30]), r"config\.json"),
    Case("config: two objects", _text(json.dumps(LLAMA_CONFIG) * 2), r"config\.json"),
    Case("config: NUL bytes", _text(bytes(1000)), r"config\.json"),
    Case("config: UTF-16", _text(json.dumps(LLAMA_CONFIG).encode("utf-16")), r"config\.json"),
    Case("config: invalid UTF-8", _text(b'{"a":"\xff"}'), r"config\.json"),
    Case("config: byte order mark", _text(b"\xef\xbb\xbf" + json.dumps(LLAMA_CONFIG).encode()), None),
    Case("config: integer of 5,000 digits", _spliced('"rope_theta":' + "9" * 5000), r"config\.json"),
    Case("config: integer of 4,000 digits", _spliced('"vocab_size":' + "9" * 4000), r"config\.json"),
    Case("config: 1e999", _spliced('"rope_theta":1e999'), r"rope"),
    Case("config: -1e999", _spliced('"rms_norm_eps":-1e999'), r"rms_norm_eps"),
    Case("config: pickle", _text(b"\x80\x04\x95"), r"config\.json"),
    Case("config: rope_theta is NaN", _config(rope_theta=float("nan")), r"rope_theta"),
    Case("config: rope_theta is 0", _config(rope_theta=0), r"rope_theta"),
    Case("config: rope_theta is negative", _config(rope_theta=-1.0), r"rope_theta"),
    Case("config: rms_norm_eps is NaN", _config(rms_norm_eps=float("nan")), r"rms_norm_eps"),
    Case("config: rms_norm_eps is 10^30", _config(rms_norm_eps=1e30), r"rms_norm_eps"),
    Case("config: rope factor is NaN", _config(rope_scaling={"rope_type": "linear", "factor": float("nan")}), "factor"),
    Case("config: rope factor is 0", _config(rope_scaling={"rope_type": "linear", "factor": 0}), "factor"),
    Case("config: rope factor is 10^300", _config(rope_scaling={"rope_type": "linear", "factor": 1e300}), "factor"),
    Case("config: unknown rope type", _config(rope_scaling={"rope_type": "os.system", "factor": 2.0}), "os.system"),
    Case("config: rope is a list", _config(rope_scaling=[1, 2]), "rope_parameters"),
    Case("config: rope is text", _config(rope_scaling="linear"), "rope_parameters"),
    Case(
        "config: 10^5 rope factors",
        _config(
            rope_scaling={"rope_type": "longrope", "short_factor": [1.0] * 100_000, "long_factor": [1.0] * 100_000}
        ),
        "rope|factor",
    ),
    Case(
        "config: code to import",
        _config(auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil--evil.Model"}),
        None,
        "CVE-2026-22807",
    ),
    Case("config: code of a stranger's repository", _config(auto_map="../../evil.py"), None, "CVE-2026-27893"),
    Case("config: trust_remote_code", _config(trust_remote_code=True), "trust_remote_code", "CVE-2026-27893"),
    Case("config: dtype is a function", _config(torch_dtype="os.system"), None),
    Case("config: dtype is an object", _config(torch_dtype={"__reduce__": ["os.system", "id"]}), None),
    Case("config: activation is a function", _config(hidden_act="__import__('os').system"), "hidden_act|activation"),
    Case("config: activation is a list", _config(hidden_act=["silu"]), "hidden_act|activation"),
    Case("config: model_type is a path", _config(model_type="../../evil"), "evil"),
    Case("config: model_type is a module", _config(model_type="os", architectures=["os.system"]), "os"),
    Case("config: model_type is a list", _config(model_type=["llama"]), "model_type"),
    Case("config: model_type is 0", _config(model_type=0), "model_type"),
    Case("config: model_type of 10^5 letters", _config(model_type="a" * 100_000), "model_type|aaa"),
    Case("config: model_type with half a pair", _spliced('"model_type":"\\ud800"'), "model_type|ud800"),
    Case("config: model_type with escape sequences", _config(model_type="\x1b[2J\r\n"), "x1b"),
    Case("config: architectures is a number", _config(architectures=7), None),
    Case("config: architectures is empty", _config(architectures=[]), None),
    Case("config: 10^5 architectures", _config(architectures=["LlamaForCausalLM"] * 50_000), None),
    Case("config: unknown key", _config(secret_multiplier=3.0), "secret_multiplier"),
    Case("config: unknown key with escape sequences", _config(**{"\x1b[2J": 3.0}), "x1b"),
    Case("config: unknown key with half a pair", _spliced('"\\ud800":1'), "ud800"),
    Case("config: unknown key of 10^5 letters", _config(**{"k" * 100_000: 1}), "kkk"),
    Case("config: quantised by a stranger", _config(quantization_config={"quant_method": "evil"}), "quant"),
    Case("config: quantisation is a list", _config(quantization_config=[1]), "quant"),
    Case("config: eos_token_id is text", _config(eos_token_id="x"), None),
    Case("config: eos_token_id outside of the vocabulary", _config(eos_token_id=1 << 40), None),
    Case("config: 10^5 eos_token_ids", _config(eos_token_id=list(range(100_000))), None),
    Case("config: bos_token_id is negative", _config(bos_token_id=-5), None),
    Case("config: tied by text", _config(tie_word_embeddings="yes"), "tie_word_embeddings"),
    Case("config: tied, and another head stored", _config(tie_word_embeddings=True), "tie_word_embeddings"),
    Case("config: head_dim is 3", _config(head_dim=3), "head_dim|shape"),
    Case("config: another hidden_size than the tensors'", _config(hidden_size=32), "hidden_size|shape"),
    Case("config: another vocab_size than the tensors'", _config(vocab_size=128), "vocab_size|shape"),
    Case("config: one layer fewer", _config(num_hidden_layers=1), "layers"),
    Case("config: one layer more", _config(num_hidden_layers=3), "layers"),
    Case("config: heads that don't divide", _config(num_attention_heads=3), "3 attention heads"),
    Case("config: another family's type", _config(model_type="mamba2", architectures=["Mamba2ForCausalLM"]), "."),
    Case("config: key twice", _spliced('"hidden_size":16'), None),
    Case("generation_config: an array", beside_weights("generation_config.json", b"[]"), r"generation_config\.json"),
    Case("generation_config: 2 MiB", beside_weights("generation_config.json", b" " * (2 << 20)), "limit"),
    Case(
        "generation_config: wrong types", beside_weights("generation_config.json", b'{"eos_token_id":{"a":[1]}}'), None
    ),
]


def _index(weight_map: Any) -> Callable[[Path], None]:
    """A sharded checkpoint of two files, with this index."""

    def make(directory: Path) -> None:
        shapes = list(llama_shapes().items())
        for number, part in enumerate((shapes[:5], shapes[5:]), start=1):
            write_tensors(directory / f"model-{number:05}-of-00002.safetensors", dict(part))
        write_json(directory / "config.json", LLAMA_CONFIG)
        content = weight_map if isinstance(weight_map, bytes) else json.dumps({"weight_map": weight_map}).encode()
        (directory / INDEX).write_bytes(content)

    return make


_NAMES = list(llama_shapes())
_RIGHT = {name: f"model-{1 + (number >= 5):05}-of-00002.safetensors" for number, name in enumerate(_NAMES)}
_PATHS = {
    "parent": "../model.safetensors", "absolute": "/etc/passwd", "folder": "a/b.safetensors", "dots": "..",
    "backslash": "..\\a.safetensors", "NUL": "a\0.safetensors", "URL": "https://evil/model.safetensors",
    "hidden": ".a.safetensors", "newline": "a\nb.safetensors", "home": "~/model.safetensors", "no name": "",
    "1,000 letters": "a" * 1000 + ".safetensors", "pickle": "pytorch_model.bin", "half a pair": "\ud800.safetensors",
    "encoded": "..%2f..%2fmodel.safetensors", "full width": "．．／model.safetensors", "option": "-rf.safetensors",
    "script": "evil.py",
}  # fmt: skip
INDICES = [
    Case("index: as it should be", _index(_RIGHT), None),
    *(
        Case(
            f"index: {name}",
            _index({**_RIGHT, "lm_head.weight": path}),
            r"index\.json|evil\.py|pytorch_model\.bin",
            "CVE-2024-45436",
        )
        for name, path in _PATHS.items()
    ),
    Case("index: a missing shard", _index({**_RIGHT, "lm_head.weight": "model-00003-of-00002.safetensors"}), "00003"),
    Case("index: a number", _index({**_RIGHT, "lm_head.weight": 3}), r"index\.json"),
    Case("index: an object", _index({**_RIGHT, "lm_head.weight": {"a": 1}}), r"index\.json"),
    Case("index: a tensor that isn't there", _index({**_RIGHT, "x.weight": _RIGHT["lm_head.weight"]}), r"x\.weight"),
    Case("index: a list", _index([1]), r"index\.json"),
    Case("index: empty", _index({}), r"index\.json"),
    Case("index: an array", _index(b"[]"), r"index\.json"),
    Case("index: deep", _index(b'{"weight_map":' * 100_000), r"index\.json"),
    Case(
        "index: 10^5 tensors and one",
        _index({f"t{n}": "model-00001-of-00002.safetensors" for n in range(100_001)}),
        "100001",
    ),
    Case("index: 5,000 files", _index({f"t{n}": f"f{n}.safetensors" for n in range(5000)}), "5000 files"),
    Case("index: 33 MiB", _index(b" " * (33 << 20)), "limit"),
]

CASES = [*SIZES, *OTHERS, *INDICES]
