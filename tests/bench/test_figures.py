"""What the tables say is computed from: samples, ratios, bounds, stream times."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from bench.__main__ import chosen, parse_arguments
from bench.child import add_unshown, decode_rate, stream_figures
from bench.environments import last_words
from bench.figures import Figures, Interval, percentile, ratio
from bench.plot import write_plot
from bench.report import print_report


def figures_of(*values: tuple[str, str, str, str, float]) -> Figures:
    figures = Figures()
    for value in values:
        figures.add(*value)
    return figures


def test_ratios_pair_values_of_the_same_round_only() -> None:
    ours, theirs = {"a": 6.0, "b": 8.0, "c": 100.0}, {"a": 2.0, "b": 4.0, "d": 1.0}
    assert ratio(ours, theirs) == Interval(2.5, 2.0, 3.0)
    assert ratio({"a": 1.0}, {"b": 1.0}) is None


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_percentiles(share: float, expected: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == expected
    assert percentile([7.0], share) == 7.0


def test_a_value_replaces_an_earlier_failure_and_both_survive_the_file(tmp_path: Path) -> None:
    figures = Figures({"threads": 2})
    figures.fail("m", "x", "decode1", "no such layer")
    figures.fail("m", "x", "load", "no such layer")
    figures.add("m", "x", "decode1", "1", 1.0)
    figures.save(tmp_path / "run.json")
    again = Figures.read(tmp_path / "run.json")
    assert again == figures
    assert again.failures["m"]["x"] == {"load": "no such layer"}


def test_stream_figures() -> None:
    found = stream_figures(10.0, [[(11.0, 1), (12.0, 1), (14.0, 2)], [(12.0, 1), (13.0, 1), (13.5, 1)]])
    assert found["ttft_s"] == [1.0, 2.0]
    assert found["itl_s"] == [1.0, 1.0, 1.0, 1.0, 0.5]
    assert found["tokens_per_s"] == pytest.approx(7 / 4)


def test_decode_rate_counts_only_while_every_sequence_runs() -> None:
    # The first stream begins early and ends early: its tokens before 2.0 and the other's after 4.0 don't count.
    rate = decode_rate([[(1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1)], [(2.0, 1), (3.0, 1), (4.0, 1), (5.0, 1)]])
    assert rate["tokens_per_s"] == pytest.approx(4 / 2)
    with pytest.raises(RuntimeError, match="ended before"):
        decode_rate([[(1.0, 1), (2.0, 1)], [(3.0, 1), (4.0, 1)]])


def test_tokens_without_a_chunk_count_with_the_last_one() -> None:
    arrivals = [(1.0, 1), (2.0, 1)]
    add_unshown(arrivals, 2)
    assert arrivals == [(1.0, 1), (2.0, 1)]
    add_unshown(arrivals, 4)
    assert arrivals == [(1.0, 1), (2.0, 3)]
    nothing: list[tuple[float, int]] = []
    add_unshown(nothing, 3)
    assert nothing == [], "a stream of nothing is the caller's error to tell"


def test_options() -> None:
    given = parse_arguments(["--peers", "llama-cpp", "--bits", "8", "--models", "nano"])
    assert [item.name for item in chosen(given)] == ["blazr int8", "llama.cpp q8_0"]
    for wrong in (["--models", "llama-7b"], ["--rounds", "0"], ["--add"]):
        with pytest.raises(SystemExit):
            parse_arguments(wrong)


def test_report_and_plot_of_a_run(tmp_path: Path) -> None:
    figures = figures_of(
        ("llama-135m", "blazr bf16", "decode1", "1", 66.0),
        ("llama-135m", "blazr bf16", "decode1 of bound", "1", 0.4),
        ("llama-135m", "llama.cpp bf16", "decode1", "1", 60.0),
        ("llama-135m", "blazr bf16", "http1 ttft p50 s", "1", 0.25),
    )
    figures.fail("llama-135m", "openvino int8", "decode1", "can't load [this]")
    console = Console(record=True, width=200)
    print_report(figures, console)
    text = console.export_text()
    assert "66.0 (40%)" in text and "250.0" in text and "1.10" in text
    assert "not measured llama-135m, openvino int8, decode1: can't load [this]" in text
    write_plot(figures, tmp_path / "run.svg")
    assert "llama.cpp bf16" in (tmp_path / "run.svg").read_text()


def test_every_figure_that_a_peer_has_is_compared_and_drawn(tmp_path: Path) -> None:
    shown = {
        "decode8": (80.0, 40.0, "2.00", "80"),
        "load s": (0.5, 2.0, "0.25", "0.5"),
        "peak bytes": (3 * 2.0**20, 2.0**20, "3.00", "3"),
        "http8 ttft p99 s": (0.125, 0.1, "1.25", "125"),
        "http8 itl p50 s": (0.01, 0.02, "0.50", "10"),
    }
    figures = Figures()
    for figure, (ours, theirs, _, _) in shown.items():
        for moment, part in (("1", 1.0), ("2", 0.5)):
            figures.add("llama-1b", "blazr int8", figure, moment, ours)
            figures.add("llama-1b", "llama.cpp q8_0", figure, moment, theirs * part)
        figures.add("llama-1b", "llama.cpp bf16", figure, "1", theirs)
    for name in ("decode8 of bound", "bare8", "read s"):
        figures.add("llama-1b", "blazr int8", name, "1", 1.0)
        figures.add("llama-1b", "llama.cpp q8_0", name, "1", 1.0)
    console = Console(record=True, width=200)
    print_report(figures, console)
    table = console.export_text().partition("blazr int8 / each peer")[2]
    assert "q8_0" in table and "bf16" not in table, "other bits aren't the same work"
    write_plot(figures, tmp_path / "run.svg")
    drawn = (tmp_path / "run.svg").read_text()
    for figure, (_, _, least, bar) in shown.items():
        line = next(line for line in table.splitlines() if line.strip().startswith(figure))
        assert f"({least} to {2 * float(least):.2f})" in line
        assert f">{bar}<" in drawn
    assert sum(line.count(" to ") for line in table.splitlines()) == len(shown) + 1  # the heading has one, too


def test_the_words_of_an_error_are_found_in_a_long_output() -> None:
    assert last_words("a\nValueError: unknown layer\nsee the manual\n\n") == "ValueError: unknown layer"
    assert last_words("a\nb\nc\nd\n") == "b | c | d"
