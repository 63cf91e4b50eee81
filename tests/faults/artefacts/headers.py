"""Safetensors headers: legal ones, and hostile ones that each break one rule of the format or one limit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.faults.artefacts.case import Case, Content, write, write_llama
from tests.models_registry.detection.builders import entry, framed

PLAIN = {"a": entry("F32", (2, 3), (0, 24)), "b.c": entry("BF16", (), (24, 26))}


def header(**tensors: object) -> str:
    """The JSON of these entries."""
    return json.dumps(tensors)


def one(dtype: str = "F32", shape: str = "[1]", offsets: str = "[0,4]") -> str:
    """A header of one tensor."""
    return f'{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}'


LEGAL = {
    "plain": framed(json.dumps(PLAIN), bytes(26)),
    "padded with spaces": framed(json.dumps(PLAIN) + "     ", bytes(26)),
    "white space everywhere": framed(json.dumps(PLAIN, indent=3), bytes(26)),
    "members in any order": framed('{"a":{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}}', bytes(4)),
    "data order differs from header order": framed(header(b=entry(offsets=(4, 8)), a=entry(offsets=(0, 4))), bytes(8)),
    "no tensors": framed("{}"),
    "empty tensor": framed(one(shape="[0,3]", offsets="[0,0]")),
    "metadata": framed('{"__metadata__":{"format":"pt","x":"\\u00e9\\n"},"a":' + one()[5:], bytes(4)),
    "metadata last": framed(one()[:-1] + ',"__metadata__":{}}', bytes(4)),
    "F8": framed(one("F8_E4M3", "[4]", "[0,4]"), bytes(4)),
}

HOSTILE: dict[str, Content] = {
    "length 0": bytes(8) + b"{}",
    "length 7": (7).to_bytes(8, "little") + b"{}",
    "length 2^31": (2**31).to_bytes(8, "little") + b"{}",
    "length 2^63": (2**63).to_bytes(8, "little") + b"{}",
    "length 2^64-1": (2**64 - 1).to_bytes(8, "little") + b"{}",
    "length 99999999 without body": (99_999_999).to_bytes(8, "little") + b"{",
    "empty file": b"",
    "three bytes": b"abc",
    "not JSON": framed("nonsense"),
    "an array": framed("[]"),
    "does not begin with {": framed(" {}"),
    "not closed": framed('{"a":'),
    "trailing comma": framed(one()[:-1] + ",}", bytes(4)),
    "something behind": framed(one() + "{}", bytes(4)),
    "NUL padding": framed(one() + "\0\0", bytes(4)),
    "overlap": framed(header(a=entry(offsets=(0, 4)), b=entry(offsets=(2, 6))), bytes(6)),
    "same place twice": framed(header(a=entry(), b=entry()), bytes(4)),
    "hole": framed(header(a=entry(offsets=(0, 4)), b=entry(offsets=(8, 12))), bytes(12)),
    "hole at the start": framed(one(offsets="[4,8]"), bytes(8)),
    "reversed": framed(one(offsets="[4,0]"), bytes(4)),
    "negative": framed(one(offsets="[-4,0]"), bytes(4)),
    "float offsets": framed(one(offsets="[0.0,4.0]"), bytes(4)),
    "exponent": framed(one(offsets="[0,4e0]"), bytes(4)),
    "bool offsets": framed(one(offsets="[false,true]"), bytes(4)),
    "string offsets": framed(one(offsets='["0","4"]'), bytes(4)),
    "three offsets": framed(one(offsets="[0,2,4]"), bytes(4)),
    "leading zero": framed(one(offsets="[0,04]"), bytes(4)),
    "shape overflow": framed(one(shape=f"[{2**32},{2**32}]"), bytes(4)),
    "huge dimension behind 0": framed(one(shape=f"[0,{2**62}]", offsets="[0,0]")),
    "overflow healed by 0": framed(one(shape=f"[{2**39},{2**39},0]", offsets="[0,0]")),
    "negative dimension": framed(one(shape="[-1]"), bytes(4)),
    "shape does not match": framed(one(shape="[2]"), bytes(4)),
    "rank 9": framed(one(shape="[1,1,1,1,1,1,1,1,1]"), bytes(4)),
    "rank 10^6": framed(one(shape="[" + "1," * 999_999 + "1]"), bytes(4)),
    "nested shape": framed(one(shape="[[1]]"), bytes(4)),
    "unknown dtype": framed(one("F33"), bytes(4)),
    "dtype with code": framed(one("os.system"), bytes(4)),
    "dtype is a number": framed('{"a":{"dtype":1,"shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "duplicate name": framed('{"a":%s,"a":%s}' % ((json.dumps(entry()),) * 2), bytes(4)),
    "duplicate member": framed('{"a":{"dtype":"F32","dtype":"F32","data_offsets":[0,4]}}', bytes(4)),
    "extra member": framed('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}', bytes(4)),
    "missing member": framed('{"a":{"dtype":"F32","shape":[1]}}', bytes(4)),
    "entry is a number": framed('{"a":4}', bytes(4)),
    "NUL in a name": framed('{"a\\u0000":' + one()[5:], bytes(4)),
    "path as a name": framed('{"../a":' + one()[5:], bytes(4)),
    "absolute path as a name": framed('{"/etc/passwd":' + one()[5:], bytes(4)),
    "surrogate in a name": framed('{"\\ud800":' + one()[5:], bytes(4)),
    "space in a name": framed('{"a b":' + one()[5:], bytes(4)),
    "empty name": framed('{"":' + one()[5:], bytes(4)),
    "name of 1 MiB": framed('{"' + "a" * (1 << 20) + '":' + one()[5:], bytes(4)),
    "invalid UTF-8": framed(b'{"\xff\xfe":' + one()[5:].encode(), bytes(4)),
    "metadata not an object": framed('{"__metadata__":[],"a":' + one()[5:], bytes(4)),
    "metadata with a number": framed('{"__metadata__":{"a":1},"a":' + one()[5:], bytes(4)),
    "metadata nested": framed('{"__metadata__":{"a":{}},"a":' + one()[5:], bytes(4)),
    "metadata with a lone surrogate": framed('{"__metadata__":{"a":"\\ud800"},"a":' + one()[5:], bytes(4)),
    "metadata with a control character": framed('{"__metadata__":{"a":"\n"},"a":' + one()[5:], bytes(4)),
    "metadata twice": framed('{"__metadata__":{},"__metadata__":{},"a":' + one()[5:], bytes(4)),
    "metadata of 7 MiB": (
        framed('{"__metadata__":{' + ",".join(f'"{n}":"{"x" * 60000}"' for n in range(120)) + '},"a":' + one()[5:]),
        1 << 27,
    ),
    "one metadata string of 7 MiB": (framed('{"__metadata__":{"a":"' + "é" * (7 << 19) + '"}}'), 1 << 27),
    "trailing bytes": framed(one(), bytes(5)),
    "truncated data": framed(one(), bytes(3)),
    "deep arrays": framed('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", bytes(4)),
    "deep objects": (framed('{"a":' * 100_000 + "1" + "}" * 100_000), 1 << 27),
    "7 MiB of white space": (framed("{" + " " * (7 << 20) + "x"), 1 << 27),
    "7 MiB of quotes": (framed("{" + '"' * (7 << 20)), 1 << 27),
    "7 MiB of brackets": (framed('{"a":{"dtype":"F32","shape":[' + "[]," * 2_400_000), 1 << 27),
    "header of 2 MiB in a file of 3": framed(one() + " " * (2 << 20), bytes(1 << 20)),
    "header above 8 MiB": (framed(one() + " " * (9 << 20)), 1 << 28),
}  # fmt: skip

MORE_HOSTILE = {
    "2^20 entries of one letter": (framed("{" + '"a":1,' * (1 << 20)), 1 << 27),
    "header length of the file": (100).to_bytes(8, "little") + b"{" + bytes(91),
    "header one byte behind the end": (93).to_bytes(8, "little") + b"{" + bytes(91),
    "length of one": (1).to_bytes(8, "little") + b"{}",
    "big-endian length": (2).to_bytes(8, "big") + b"{}",
    "negative length": (2**64 - 8).to_bytes(8, "little") + b"{}",
    "UTF-16": framed('{"a":1}'.encode("utf-16-le")),
    "byte order mark": framed(b"\xef\xbb\xbf{}"),
    "comment": framed("{/* */" + one()[1:], bytes(4)),
    "single quotes": framed(one().replace('"', "'"), bytes(4)),
    "NaN offsets": framed(one(offsets="[NaN,4]"), bytes(4)),
    "Infinity in a shape": framed(one(shape="[Infinity]"), bytes(4)),
    "1e999 in a shape": framed(one(shape="[1e999]"), bytes(4)),
    "hexadecimal offsets": framed(one(offsets="[0x0,0x4]"), bytes(4)),
    "plus sign": framed(one(offsets="[0,+4]"), bytes(4)),
    "minus zero": framed(one(offsets="[-0,4]"), bytes(4)),
    "offset of 2^63": framed(one(offsets=f"[{2**63},{2**63 + 4}]"), bytes(4)),
    "offset of 2^64": framed(one(offsets=f"[0,{2**64 + 4}]"), bytes(4)),
    "offset of 10^30": framed(one(offsets="[0," + "1" * 31 + "]"), bytes(4)),
    "offset of 5,000 digits": framed(one(offsets="[0," + "1" * 5000 + "]"), bytes(4)),
    "dimension of 2^64": framed(one(shape=f"[{2**64}]"), bytes(4)),
    "dimension of 5,000 digits": framed(one(shape="[" + "9" * 5000 + "]"), bytes(4)),
    "shape null": framed(one(shape="null"), bytes(4)),
    "offsets null": framed(one(offsets="null"), bytes(4)),
    "dtype null": framed('{"a":{"dtype":null,"shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "dtype in lower case": framed(one("f32"), bytes(4)),
    "dtype with a NUL": framed(one("F32\\u0000"), bytes(4)),
    "sub-byte dtype": framed(one("F4", "[8]"), bytes(4)),
    "escaped member names": framed('{"a":{"\\u0064type":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "prototype as a name": framed('{"__proto__":{"dtype":"F32"}}', bytes(4)),
    "name with a newline": framed('{"a\\nb":' + one()[5:], bytes(4)),
    "name with an escape sequence": framed('{"\\u001b[2J":' + one()[5:], bytes(4)),
    "name from right to left": framed('{"a\u202eb":' + one()[5:], bytes(4)),
    "name with a backslash": framed('{"..\\\\a":' + one()[5:], bytes(4)),
    "name of 513 bytes": framed('{"' + "a" * 513 + '":' + one()[5:], bytes(4)),
    "one name escaped and plain": framed('{"a":%s,"\\u0061":%s}' % ((json.dumps(entry()),) * 2), bytes(4)),
    "metadata null": framed('{"__metadata__":null,"a":' + one()[5:], bytes(4)),
    "metadata is a tensor": framed('{"__metadata__":' + json.dumps(entry()) + "}", bytes(4)),
    "metadata key twice": framed('{"__metadata__":{"a":"1","a":"2"},"a":' + one()[5:], bytes(4)),
    "two files in one": framed(one(), bytes(4)) + framed(one(), bytes(4)),
}  # fmt: skip
"""More of the same kinds, beside the table above."""


def _alone(content: Content) -> Callable[[Path], None]:
    return lambda directory: write(directory / "model.safetensors", content)


def _rewritten(change: Callable[[dict[str, object]], str]) -> Callable[[Path], None]:
    """A whole checkpoint whose header is written by ``change``."""

    def make(directory: Path) -> None:
        write_llama(directory)
        path = directory / "model.safetensors"
        content = path.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        path.write_bytes(framed(change(json.loads(content[8:end])), content[end:]))

    return make


_ADVISORIES = {
    "length 2^63": "CVE-2024-23605",
    "offset of 2^64": "CVE-2026-7482",
    "shape overflow": "CVE-2025-53630",
    "truncated data": "CVE-2026-7482",
    "negative dimension": "CVE-2024-21802",
    "huge dimension behind 0": "CVE-2025-0317",
}

CASES = [
    *(
        Case(f"header: {name}", _alone(content), r"model\.safetensors", _ADVISORIES.get(name, ""))
        for name, content in {**HOSTILE, **MORE_HOSTILE}.items()
    ),
    Case("header: as the library writes it", write_llama, None),
    Case("header: padded with spaces", _rewritten(lambda found: json.dumps(found) + " " * 100), None),
    Case("header: white space everywhere", _rewritten(lambda found: json.dumps(found, indent=2)), None),
    Case("header: no white space", _rewritten(lambda found: json.dumps(found, separators=(",", ":"))), None),
    Case("header: names in another order", _rewritten(lambda found: json.dumps(dict(reversed(found.items())))), None),
    Case(
        "header: metadata that looks like a program",
        _rewritten(lambda found: json.dumps({**found, "__metadata__": {"x": "__import__('os')", "y": "é\n\0"}})),
        None,
    ),
]
