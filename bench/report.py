"""Tables of a run: rates with their share of the bound, ratios to peers, what could not be measured."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from bench.bounds import Sizes
from bench.figures import Figures, Interval, ratio
from bench.implementations import IMPLEMENTATIONS, Implementation
from bench.tasks import CLIENTS, Lengths

_PEAK_OF_BITS = {16: "bfloat16", 8: "int8", 4: "int8"}


def add_bounds(figures: Figures, sizes: Mapping[str, Sizes], lengths: Lengths) -> None:
    """Derive shares of the bounds, and of the memory budget, from the samples."""
    machine = figures.machine
    for model, size in sizes.items():
        for implementation in IMPLEMENTATIONS:
            rows = figures.samples.get(model, {}).get(implementation.name, {})
            for figure in list(rows):
                kind, count = figure.rstrip("0123456789"), figure.lstrip("abcdefghijklmnopqrstuvwxyz")
                for moment, value in list(rows[figure].items()):
                    share = None
                    if kind == "decode" and count.isdigit() and "bandwidth" in machine:
                        share = value / decode_bound(figures, size, implementation, model, int(count), lengths)
                    elif kind == "prefill" and count.isdigit() and "gemm" in machine:
                        peak = machine["gemm"][_PEAK_OF_BITS[implementation.bits]]
                        share = value / int(count) * size.prefill_operations(int(count)) / peak
                    if share is not None:
                        figures.add(model, implementation.name, f"{figure} of bound", moment, share)
            # The budget: the weights with a tenth on top, and the stated memory for states.
            for moment, peak_bytes in rows.get("server peak bytes", rows.get("peak bytes", {})).items():
                weights, cache = (_any(rows.get(name)) for name in ("weights bytes", "cache bytes"))
                if weights and cache and implementation.peer == "blazr":
                    figures.add(
                        model, implementation.name, "peak of budget", moment, peak_bytes / (1.1 * weights + cache)
                    )


def decode_bound(
    figures: Figures, size: Sizes, implementation: Implementation, model: str, batch: int, lengths: Lengths
) -> float:
    """Tokens per second at which memory alone would let a step run."""
    bits = implementation.stored_bits
    if bits is None:
        stored = _any(figures.values(model, implementation.name, "weights bytes"))
        bits = 8 * stored / size.matrix_elements if stored else 16.0 * implementation.bits / 16
    bandwidth = max(figures.machine["bandwidth"].values())
    return batch * bandwidth / size.bytes_read(batch, lengths.context(batch), bits)


def _any(values: Mapping[str, float] | None) -> float | None:
    return next(iter(values.values()), None) if values else None


def print_report(figures: Figures, console: Console) -> None:
    """Rates model by model, then ratios to peers."""
    machine = figures.machine
    if "bandwidth" in machine:
        rates = ", ".join(f"{name.replace('_', ' ')} {value / 1e9:.1f}" for name, value in machine["bandwidth"].items())
        products = ", ".join(f"{name} {value / 1e12:.2f}" for name, value in machine["gemm"].items())
        console.print(
            f"{machine['processor']}, {machine['threads']} threads; memory read in GB/s: {rates}; "
            f"products in 10¹² operations/s: {products}"
        )
    for model, rows in figures.samples.items():
        _print_rates(model, rows, console)
    for model in figures.samples:
        _print_ratios(figures, model, console)
    for model, rows_failed in figures.failures.items():
        for name, tasks in rows_failed.items():
            for words in dict.fromkeys(tasks.values()):
                names = ", ".join(task for task, text in tasks.items() if text == words)
                console.print(f"[yellow]not measured[/] {model}, {name}, {names}: ", end="")
                console.print(words, markup=False, highlight=False)


def _print_rates(model: str, rows: Mapping[str, Mapping[str, Mapping[str, float]]], console: Console) -> None:
    names = [item.name for item in IMPLEMENTATIONS if item.name in rows]
    figures = list(dict.fromkeys(figure for name in names for figure in rows[name]))
    rates = [item for item in figures if item.startswith(("decode", "prefill")) and not item.endswith("bound")]
    streams = [item for item in figures if item.startswith(("http", "bare"))]
    for title, columns in (
        ("tokens/s (share of the bound), median of the rounds", rates),
        ("load and memory", [item for item in figures if item in _PLAIN]),
        ("streams: tokens/s in all", [item for item in streams if " " not in item]),
        *(
            (
                f"{count} client{'s' * (count > 1)}: ms to the first and each next token",
                [item for item in streams if item.split()[0].lstrip("htpbare") == str(count) and item.endswith(" s")],
            )
            for count in CLIENTS
        ),
        ("one client, short prompt: ms to the first token", [item for item in streams if "first token" in item]),
    ):
        if not columns:
            continue
        columns.sort(key=_order)
        headings = [figure.removesuffix(" s").replace(" ttft", " first").replace(" itl", " next") for figure in columns]
        console.print(f"\n[bold]{model}[/]: {title}", highlight=False)
        table = Table("", box=None)
        for heading in headings:
            table.add_column(heading, justify="right")
        for name in names:
            if any(figure in rows[name] for figure in columns):
                table.add_row(name, *(_cell(rows[name], figure) for figure in columns))
        console.print(table)


def _print_ratios(figures: Figures, model: str, console: Console) -> None:
    """Each of ours against every peer with as many bits, figure by figure."""
    rows = figures.samples[model]
    for ours in IMPLEMENTATIONS:
        if ours.peer != "blazr" or ours.name not in rows:
            continue
        peers = [item.name for item in IMPLEMENTATIONS if item.peer != "blazr" and item.bits == ours.bits]
        found = {
            (figure, peer): interval
            for figure in rows[ours.name]
            for peer in peers
            if is_compared(figure)
            and (interval := ratio(figures.values(model, ours.name, figure), figures.values(model, peer, figure)))
        }
        columns = [peer for peer in peers if any(name == peer for _, name in found)]
        if not columns:
            continue
        console.print(
            f"\n[bold]{model}[/]: {ours.name} / each peer, median (min to max) of the rounds; "
            "of times and bytes less is better",
            highlight=False,
        )
        table = Table("", *columns, box=None)
        for figure in sorted({figure for figure, _ in found}, key=_order):
            cells = [found.get((figure, peer)) for peer in columns]
            table.add_row(figure, *("–" if cell is None else str(cell) for cell in cells))
        console.print(table)


def is_compared(figure: str) -> bool:
    """Whether a figure is one that peers have as well."""
    if figure.endswith((" of bound", "first token s")):
        return False
    return figure.startswith(("decode", "prefill", "http")) or figure in ("load s", "peak bytes", "server peak bytes")


_PLAIN = (
    "load s",
    "read s",
    "peak bytes",
    "server peak bytes",
    "weights bytes",
    "cache bytes",
    "own share",
    "peak of budget",
)


def _order(figure: str) -> tuple[str, int, str]:
    head = figure.split()[0]
    return head.rstrip("0123456789"), int(head.lstrip("abcdefghijklmnopqrstuvwxyz") or 0), figure


def _cell(row: Mapping[str, Mapping[str, float]], figure: str) -> str:
    values = row.get(figure)
    if not values:
        return "–"
    value = Interval.of(list(values.values())).median
    if figure.endswith("bytes"):
        return f"{value / 2**20:,.0f} MiB"
    if figure in ("load s", "read s", "own share", "peak of budget"):
        return f"{value:.2f}"
    if figure.endswith(" s"):
        return f"{1000 * value:,.1f}"
    bound = row.get(f"{figure} of bound")
    shown = f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
    return f"{shown} ({Interval.of(list(bound.values())).median:.0%})" if bound else shown
