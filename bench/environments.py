"""The peers' own environments under the cache folder, and the files they need in their own formats.

Everything is made on first use and kept; a directory or file has its final name only once it is complete, and what
failed says why.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.processes import ROOT, PeerFailed

Report = Callable[[str], None]
REQUIREMENTS = {
    "llama-cpp": ["llama-cpp-python"],
    "openvino": ["openvino-genai"],
    "openvino-export": ["optimum-intel[openvino]", "torch"],
    "mistralrs": ["mistralrs"],
}
"""What pip installs in each environment; transformers runs in our own, where the tests need it anyway."""
LLAMA_FLAGS = ["-DGGML_NATIVE=ON", "-DCMAKE_CXX_FLAGS=-fno-dse"]
"""llama.cpp with the processor's own instructions. GCC 12's ``_tile_loadconfig`` says that it reads 8 bytes where it
reads 64; the stores to the others are dead to the compiler, and the first product by matrix tiles (Q8_0 or Q4_K_M, on
a processor with AMX) ended the process with a general protection fault."""


class Environments:
    """Environments and converted files under one folder.

    Args:
        report: Gets one line before each long step.
    """

    def __init__(self, cache: Path, report: Report) -> None:
        self._cache = cache
        self._report = report
        self._failed: dict[str, str] = {}

    def python(self, name: str) -> Path:
        """The interpreter of an environment, made if need be.

        Raises:
            PeerFailed: It can't be made; told again at once when asked again.
        """
        return self._once(f"environment {name}", lambda: self._environment(name))

    def _once(self, what: str, make: Callable[[], Path]) -> Path:
        if what in self._failed:
            raise PeerFailed(self._failed[what])
        try:
            return make()
        except PeerFailed as error:
            self._failed[what] = str(error)
            raise

    def _environment(self, name: str) -> Path:
        directory = self._cache / "peers" / name
        python, complete = directory / "bin" / "python", directory / "complete"
        if complete.exists():
            return python
        self._report(f"installing {' '.join(REQUIREMENTS[name])} (once; minutes)")
        self._run([sys.executable, "-m", "venv", str(directory)])
        # As fast as this machine can: the processor's own instructions.
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        constraints = ["-c", str(ROOT / "bench" / "export-constraints.txt")] if name == "openvino-export" else []
        self._run([*pip, *constraints, *REQUIREMENTS[name]], log=f"{name}-install")
        if name == "openvino-export":
            # Asked for by its metadata, needed for pictures only, and from another build than torch it breaks it.
            self._run([str(python), "-m", "pip", "uninstall", "-q", "-y", "torchvision"])
        complete.touch()
        return python

    def llama_sources(self) -> Path:
        """llama.cpp as llama-cpp-python's source distribution holds it: converter and server."""
        return self._once("sources of llama.cpp", self._llama_sources)

    def _llama_sources(self) -> Path:
        python = self.python("llama-cpp")
        target = python.parent.parent / "src"
        if (target / "convert_hf_to_gguf.py").exists():
            return target
        version = self._run(
            [str(python), "-c", "import importlib.metadata as m; print(m.version('llama-cpp-python'))"]
        ).strip()
        self._report("fetching llama.cpp's sources")
        download = target.with_name("sdist")
        pip = [str(python), "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python"]
        self._run([*pip, f"llama-cpp-python=={version}", "-d", str(download)], log="llama-cpp-sources")
        with tarfile.open(next(download.glob("*.tar.gz"))) as archive:
            archive.extractall(download, filter="data")
        next(download.glob("*/vendor/llama.cpp")).rename(target)
        return target

    def llama_server(self) -> Path:
        """The ``llama-server`` binary of the same sources: the wheel's own server computes one request at a time."""
        return self._once("llama-server", self._llama_server)

    def _llama_server(self) -> Path:
        sources = self.llama_sources()
        binary = sources / "build" / "bin" / "llama-server"
        if binary.exists():
            return binary
        self._report("building llama-server (once; minutes)")
        options = ["BUILD_TESTS=OFF", "BUILD_EXAMPLES=OFF", "BUILD_UI=OFF", "USE_PREBUILT_UI=OFF", "OPENSSL=OFF"]
        flags = ["-DCMAKE_BUILD_TYPE=Release", *LLAMA_FLAGS, *(f"-DLLAMA_{option}" for option in options)]
        build = str(sources / "build")
        self._run(["cmake", "-S", str(sources), "-B", build, *flags], log="llama-server")
        jobs = str(len(os.sched_getaffinity(0)))
        self._run(["cmake", "--build", build, "-j", jobs, "--target", "llama-server"], log="llama-server")
        return binary

    def gguf(self, checkpoint: Path, form: str) -> Path:
        """The checkpoint as GGUF: ``bf16`` by llama.cpp's converter, others by its quantiser."""
        file = self._cache / "gguf" / f"{checkpoint.name}-{form}.gguf"
        return self._once(f"{file.name}", lambda: self._gguf(checkpoint, form, file))

    def _gguf(self, checkpoint: Path, form: str, file: Path) -> Path:
        if file.exists():
            return file
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial.gguf")
        module = ["-m", "bench.peers.gguf_files"]
        if form == "bf16":
            self._report(f"converting {checkpoint.name} to GGUF")
            sources = self.llama_sources()
            command = [sys.executable, *module, "convert", str(sources), str(checkpoint), str(partial)]
        else:
            source = self.gguf(checkpoint, "bf16")
            self._report(f"quantising {checkpoint.name} to {form}")
            command = [str(self.python("llama-cpp")), *module, "quantise", str(source), str(partial), form]
        self._run(command, log=f"gguf-{checkpoint.name}-{form}")
        return partial.rename(file)

    def openvino_model(self, checkpoint: Path, form: str) -> Path:
        """The checkpoint as OpenVINO's optimum exporter writes it: ``fp16``, ``int8`` or ``int4``."""
        directory = self._cache / "openvino" / f"{checkpoint.name}-{form}"
        return self._once(directory.name, lambda: self._openvino_model(checkpoint, form, directory))

    def _openvino_model(self, checkpoint: Path, form: str, directory: Path) -> Path:
        if (directory / "openvino_model.bin").exists():
            return directory
        self._report(f"exporting {checkpoint.name} to OpenVINO in {form}")
        partial = directory.with_name(f"{directory.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        exporter = self.python("openvino-export").with_name("optimum-cli")
        command = [str(exporter), "export", "openvino", "--model", str(checkpoint)]
        command += ["--task", "text-generation-with-past", "--weight-format", form, str(partial)]
        self._run(command, log=f"openvino-{directory.name}")
        return partial.rename(directory)

    def _run(self, command: Sequence[str], log: str | None = None) -> str:
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "CMAKE_ARGS": " ".join(LLAMA_FLAGS), "HF_HUB_OFFLINE": "1"}
        try:
            done = subprocess.run(command, env=variables, capture_output=True, text=True, errors="replace", cwd=ROOT)
        except OSError as error:
            raise PeerFailed(f"{command[0]}: {error.strerror}") from None
        if log is not None:
            (self._cache / "logs").mkdir(parents=True, exist_ok=True)
            (self._cache / "logs" / f"{log}.log").write_text(done.stdout + done.stderr)
        if done.returncode:
            words = last_words(done.stdout + done.stderr)
            raise PeerFailed(f"{Path(command[0]).name} ended with {done.returncode}: {words}")
        return done.stdout


def last_words(output: str) -> str:
    """The last line that tells of an error, or the last three lines."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b|error\b", line, re.IGNORECASE)]
    return (errors[-1] if errors else " | ".join(lines[-3:]))[:500]
