"""GGUF files by llama.cpp's own tools.

python -m bench.peers.gguf_files convert SOURCES CHECKPOINT FILE     (an environment with torch and transformers)
python -m bench.peers.gguf_files quantise FILE OUTPUT q4_k_m         (llama-cpp-python's environment)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def convert(sources: Path, checkpoint: Path, file: Path) -> None:
    """Run ``convert_hf_to_gguf.py`` in bfloat16.

    It recognises a tokenizer by a hash of what it makes of one text; ours is GPT-2's way of splitting with another
    vocabulary, so its hash is unknown there, and the answer is given here. Our weights have no prediction heads,
    which it expects of Qwen's hybrids unless it is told.
    """
    sys.path[:0] = [str(sources), str(sources / "gguf-py")]
    import convert_hf_to_gguf
    from conversion import base, llama

    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    llama.LlamaModel.set_vocab = base.TextModel._set_vocab_gpt2  # instead of asking for sentencepiece first
    sys.argv = ["convert_hf_to_gguf.py", str(checkpoint), "--outfile", str(file), "--outtype", "bf16"]
    if json.loads((checkpoint / "config.json").read_text())["model_type"].startswith(("qwen3_5", "qwen3_next")):
        sys.argv.append("--no-mtp")
    convert_hf_to_gguf.main()


def quantise(file: Path, output: Path, form: str) -> None:
    """Run ``llama_model_quantize``."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{form.upper()}")
    status = llama_cpp.llama_model_quantize(str(file).encode(), str(output).encode(), params)
    if status:
        raise RuntimeError(f"llama_model_quantize returned {status}")


def main() -> None:
    action, *values = sys.argv[1:]
    if action == "convert":
        convert(*map(Path, values))
    else:
        quantise(Path(values[0]), Path(values[1]), values[2])


if __name__ == "__main__":
    main()
