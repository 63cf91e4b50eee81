"""What correcting the errors of rounding is worth at equal bytes: ``python -m bench.correction DIRECTORY``.

All matrices of the layers get one form, embedding and head int8. The divergence from the stored weights is measured in
float32 over Python's help pages; errors are corrected over the pages behind those, or over another text (``--text``).
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from pathlib import Path

import torch

from blazr_site.commands.arguments import QUANTISE_CORRECTION, QUANTISE_TOKENS, QUANTISE_WINDOW
from blazr_site.commands.quality import text_tokens
from inference.llm.quality import WindowRunner
from inference.llm.quantising.correcting import CORRECTED_FORMS, Correction
from inference.llm.quantising.measuring import Measurement
from inference.llm.quantising.parts import Part, find_parts
from inference.llm.quantising.quantise import windows_of
from inference.llm.quantising.side_files import side_files
from inference.llm.quantising.source import SourceTensors
from inference.modelling.backends.backend import choose_backend
from inference.modelling.quantisation import FormName
from inference.modelling.weights.loader import load_network
from models_registry.detection.inspection import inspect_checkpoint


def main() -> None:
    """Measure each form without correction and with it, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--forms", nargs="*", default=["int4", "int3"], choices=CORRECTED_FORMS)
    parser.add_argument("--tokens", type=int, default=QUANTISE_TOKENS, help="to measure on (%(default)s)")
    parser.add_argument("--correct", type=int, default=QUANTISE_CORRECTION, help="to correct over (%(default)s)")
    parser.add_argument("--text", type=Path, help="to correct over, instead of the help pages")
    given = parser.parse_args()
    found = inspect_checkpoint(given.directory.resolve())
    both, _ = text_tokens(found, None, given.tokens + given.correct)
    other = text_tokens(found, given.text, given.correct)[0] if given.text else both[given.tokens :]
    network = load_network(found.spec, found.weight_paths, dtype=torch.float32)
    runner = WindowRunner(network, QUANTISE_WINDOW, "float32", "cpu")
    stored = SourceTensors(found.spec, found.weight_paths, side_files(found))
    parts = find_parts(found.spec, stored.tensors)
    measured, corrected = (windows_of(ids, QUANTISE_WINDOW) for ids in (both[: given.tokens], other))
    print("| form | corrected over | KL (nats) | same first choice | s |\n|---|---|---|---|---|", flush=True)
    with torch.inference_mode():
        measurement = Measurement(runner, choose_backend("cpu", torch.float32), measured)
        for form in given.forms:
            for correction in (None, Correction(runner, corrected)):
                forms: dict[str, FormName] = {}
                plain: dict[Part, FormName] = {}
                for part in parts:
                    own: FormName = form if 0 <= part.layer < measurement.num_layers else "int8"
                    if correction and all(correction.can_correct(name, own) for name in part.parameters):
                        forms |= dict.fromkeys(part.parameters, own)
                    else:
                        plain[part] = own
                began = time.monotonic()
                with measurement.rounded(plain), correction.applied(forms) if correction else nullcontext():
                    took = time.monotonic() - began
                    result = measurement.divergence(-1)
                label = f"{len(other)} tokens" if correction else "nothing"
                print(
                    f"| {form} | {label} | {result.mean_kl:.2e} | {result.top1_agreement:.1%} | {took:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
