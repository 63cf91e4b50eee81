"""NVML's C interface, spoken to a library that is compiled here: the calls are real, the device isn't."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from inference.host.nvml import nvml_counters

SOURCE = r"""
#include <stdlib.h>
#include <string.h>
static int devices[2];
int nvmlInit_v2(void) { return getenv("NVML_FAILS") ? 9 : 0; }
const char *nvmlErrorString(int status) {
  return status == 6 ? "Not Found" : status == 3 ? "Not Supported" : "Driver Not Loaded";
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  if (!strcmp(uuid, "GPU-11111111-2222-3333-4444-555555555555")) *device = &devices[0];
  else if (!strcmp(uuid, "GPU-old")) *device = &devices[1];
  else if (!strcmp(uuid, "MIG-part")) *device = &devices[1];
  else return 6;
  return 0;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *part, void **device) { *device = &devices[0]; return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
  strncpy(uuid, "GPU-11111111-2222-3333-4444-555555555555", length);
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *energy) {
  static unsigned long long now = 0x100000000ULL;
  if (device == &devices[1]) return 3;
  *energy = now;
  now += 1500;
  return 0;
}
"""
UUID = "11111111-2222-3333-4444-555555555555"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder: Path = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(SOURCE)
    target = str(folder / "libnvidia-ml.so")
    subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-o", target, str(folder / "nvml.c")], check=True)
    return target


@pytest.mark.parametrize("uuid", [UUID, f"GPU-{UUID}", "part", "MIG-part"])
def test_a_device_is_found_by_its_uuid_and_a_part_of_it_counts_the_whole(library: str, uuid: str) -> None:
    (counter,), notice = nvml_counters(uuid, library)
    assert (counter.identity, counter.name, counter.source, notice) == (f"GPU-{UUID}", "GPU-11111111", "nvml", "")
    assert [counter.read(), counter.read()] == [1.5, 3.0]


@pytest.mark.parametrize(("uuid", "words"), [("other", "Not Found"), ("old", "Not Supported")])
def test_devices_without_energy_are_explained(library: str, uuid: str, words: str) -> None:
    found, notice = nvml_counters(uuid, library)
    assert found == [] and words in notice and "a device since Volta" in notice


def test_a_driver_that_fails_or_is_missing_is_explained(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVML_FAILS", "1")
    assert "Driver Not Loaded" in nvml_counters(UUID, library)[1]
    assert "libnothing.so" in nvml_counters(UUID, "libnothing.so")[1]


def test_an_old_driver_lacks_the_call() -> None:
    assert "needs a newer driver" in nvml_counters(UUID, "libc.so.6")[1]
