"""Quantising by measurement, from a checkpoint to one that keeps its limit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from blazr_site.commands.quality import text_tokens
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest, UnsupportedFormat
from inference.llm.options import LLMOptions
from inference.llm.quality import measure_quality
from inference.llm.quantising.parts import KINDS, fixed_bytes
from inference.llm.quantising.quantise import Limit, Quantised, quantise_checkpoint, split_text
from inference.llm.quantising.writing import PLAN_FILE
from models_registry.detection.inspection import Inspection
from tests.inference.llm.quantising.checkpoints import inspect, parts_of, quantise, random_tokens, source_of, tensors_of
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_quantisation import CONFIGS


@pytest.fixture(scope="module")
def demo() -> Inspection:
    return inspect(PREBUILT_DIRECTORY)


LIMIT = Limit(size_bytes=1_300_000)


@pytest.fixture(scope="module")
def limited(demo: Inspection, tmp_path_factory: pytest.TempPathFactory) -> tuple[Quantised, Path]:
    """The demo within ``LIMIT``, and where it was written; tests read it only."""
    target = tmp_path_factory.mktemp("limited") / "out"
    return quantise(demo, target, LIMIT), target


def test_a_size_is_kept_and_used(limited: tuple[Quantised, Path]) -> None:
    found, target = limited
    limit = LIMIT.size_bytes
    assert limit is not None
    again = inspect(target)
    assert 0.95 * limit < again.size_bytes == found.size_bytes <= limit
    assert len(set(found.plan.forms.values()) - {"stored"}) > 2
    uniform = {point.form: point for point in found.curve if point.form}
    assert list(uniform) == list(KINDS)
    assert uniform["int4"].size_bytes < found.size_bytes < uniform["int8"].size_bytes
    assert uniform["int8"].mean_kl < found.divergence.mean_kl < uniform["int4"].mean_kl
    (fact,) = [fact for fact in again.facts if fact.name == "quantisation"]
    assert f"KL {found.divergence.mean_kl:.2e} nats as measured on random tokens" in fact.value


def test_without_a_curve_the_plan_is_the_same(
    demo: Inspection, limited: tuple[Quantised, Path], tmp_path: Path
) -> None:
    found = quantise(demo, tmp_path / "out", LIMIT, with_curve=False)
    assert found.plan == limited[0].plan
    assert [(point.size_bytes, point.mean_kl) for point in found.curve] == [
        (found.plan.size_bytes, found.divergence.mean_kl)
    ]
    assert json.loads((tmp_path / "out" / PLAN_FILE).read_text())["curve"][0]["mean_kl"] == found.divergence.mean_kl


@pytest.mark.parametrize("form", ["int3", "int4", "int5"])
def test_mixed_forms_beat_one_form_of_the_same_bytes(demo: Inspection, tmp_path: Path, form: str) -> None:
    parts = parts_of(demo)
    size = fixed_bytes(parts, tensors_of(demo).tensors) + sum(part.sizes[form] for part in parts)  # type: ignore[index]
    found = quantise(demo, tmp_path / "out", Limit(size_bytes=size))
    (uniform,) = [point for point in found.curve if point.form == form]
    assert found.size_bytes <= uniform.size_bytes == size
    assert found.divergence.mean_kl < 0.9 * uniform.mean_kl


def test_the_stated_divergence_is_that_of_the_written_files(demo: Inspection, limited: tuple[Quantised, Path]) -> None:
    found, target = limited
    again = inspect(target)
    (measured,) = measure_quality(
        again.spec, again.weight_paths, random_tokens(demo.spec.vocab_size), ["none"],
        options=LLMOptions(), window=24, reference=(demo.spec, demo.weight_paths),
    )[1:]  # fmt: skip
    assert measured.num_tokens == found.divergence.num_tokens
    # The kernels also round activations.
    assert measured.mean_kl == pytest.approx(found.divergence.mean_kl, rel=0.3)


def test_a_divergence_is_kept_with_few_bytes(demo: Inspection, tmp_path: Path) -> None:
    every = quantise(demo, tmp_path / "every", Limit(size_bytes=3_000_000)).curve
    limit = (every[0].mean_kl * every[-1].mean_kl) ** 0.5
    found = quantise(demo, tmp_path / "out", Limit(max_kl=limit))
    assert found.divergence.mean_kl <= limit
    assert found.size_bytes < max(point.size_bytes for point in every)
    assert not any(
        point.mean_kl <= limit and point.size_bytes < 0.97 * found.size_bytes for point in (*every, *found.curve)
    )


def test_limits_out_of_reach_name_what_is_in_reach(demo: Inspection, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"can't be made smaller than [0-9.]+ [KM]iB .* 1000 bytes were asked"):
        quantise(demo, tmp_path / "out", Limit(size_bytes=1000))
    with pytest.raises(InvalidRequest, match=r"1e-09 nats can't be kept within 1000000 bytes: the best plan of"):
        quantise(demo, tmp_path / "out", Limit(size_bytes=1_000_000, max_kl=1e-9))
    assert not list(tmp_path.iterdir())


def test_what_memory_cannot_hold_is_not_begun(
    demo: Inspection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.llm.quantising.quantise.free_memory_bytes", lambda device: 1 << 20)
    with pytest.raises(InvalidRequest, match=r"measuring on \d+ tokens takes [0-9.]+ MiB, cpu has 1(.0)? MiB free"):
        quantise(demo, tmp_path / "out", LIMIT)
    assert not list(tmp_path.iterdir())


def test_corrected_codes_are_closer_and_are_those_that_are_written(demo: Inspection, tmp_path: Path) -> None:
    tokens, _ = text_tokens(demo, None, 900)
    limit = Limit(size_bytes=700_000)

    def quantised(name: str, calibration: Sequence[int]) -> Quantised:
        return quantise_checkpoint(
            demo.spec, demo.weight_paths, source_of(demo), tmp_path / name, tokens[:100], limit, text="help pages",
            window=100, calibration=calibration,
        )  # fmt: skip

    plain, found = quantised("plain", ()), quantised("out", tokens[100:])
    assert found.plan == plain.plan
    assert found.divergence.mean_kl < plain.divergence.mean_kl
    assert found.size_bytes == plain.size_bytes
    assert found.plain.mean_kl == plain.plain.mean_kl == plain.divergence.mean_kl
    assert [point.size_bytes for point in found.curve] == [point.size_bytes for point in plain.curve]
    assert found.divergence.mean_kl in {point.mean_kl for point in found.curve}
    again = inspect(tmp_path / "out")
    quality = measure_quality(
        again.spec, again.weight_paths, tokens[:100], ["none"], options=LLMOptions(dtype="float32", device="cpu"),
        window=100, reference=(demo.spec, demo.weight_paths),
    )  # fmt: skip
    assert quality[-1].mean_kl == pytest.approx(found.divergence.mean_kl, rel=0.3), "kernels round activations too"


def test_of_a_short_text_a_third_is_measured_on() -> None:
    tokens = list(range(90))
    assert split_text(tokens, 30) == (tokens[:30], tokens[30:])
    assert split_text(tokens, 80) == (tokens[:30], tokens[30:])
    assert split_text(tokens[:3], 80) == ([0, 1], ())
    assert split_text([0], 80) == ([0], ())


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family(name: str, tmp_path: Path) -> None:
    directory, _ = make_checkpoint(CONFIGS[name](), tmp_path / "made")
    source = inspect(directory)
    found = quantise(source, tmp_path / "out", Limit(max_kl=0.5), count=24, num_corrected=24)
    assert found.divergence.mean_kl <= 0.5
    assert found.size_bytes < source.size_bytes
    written = json.loads((tmp_path / "out" / PLAN_FILE).read_text())
    assert {part["name"]: part["form"] for part in written["parts"]} == found.plan.forms
    assert all(tuple(part["divergences"]) == KINDS for part in written["parts"])
    kept = {name for name, tensor in inspect(tmp_path / "out").tensors.items() if tensor.dtype == "F32"}
    assert not any("A_log" in name and name not in kept for name in source.tensors)
    with pytest.raises(
        UnsupportedFormat, match="was written by blazr quantise; quantise the one that it was made from"
    ):
        quantise(inspect(tmp_path / "out"), tmp_path / "again", Limit(max_kl=0.5))


def test_nothing_to_quantise(tmp_path: Path) -> None:
    directory, _ = make_checkpoint(CONFIGS["llama"](), tmp_path / "made")
    source = inspect(directory)
    with pytest.raises(InvalidRequest, match="at least 2 are needed"):
        quantise(source, tmp_path / "out", Limit(max_kl=0.5), count=1)
