"""bench.versions: ratios of two trees' samples."""

from bench.figures import Figures
from bench.versions import print_ratios


def samples(**figures: list[float]) -> Figures:
    """Figures of one implementation, one value for each round."""
    found = Figures()
    for figure, values in figures.items():
        for number, value in enumerate(values):
            found.add("tiny", "blazr bf16", figure, f"round {number}", value)
    return found


def test_ratio_is_the_newer_tree_by_the_older_in_each_round(capsys):
    print_ratios(samples(decode8=[100.0, 50.0, 80.0]), samples(decode8=[110.0, 50.0, 40.0]))
    assert capsys.readouterr().out == ("tiny, blazr bf16, decode8: 1.00 (0.50 to 1.10); before 80, now 50, 3 rounds\n")


def test_figure_that_the_older_tree_does_not_have_is_left_out(capsys):
    print_ratios(samples(decode8=[100.0]), samples(decode8=[100.0], decode32=[100.0]))
    assert "decode32" not in capsys.readouterr().out


def test_only_the_rounds_that_both_trees_have_are_compared(capsys):
    print_ratios(samples(decode8=[100.0]), samples(decode8=[100.0, 300.0]))
    assert ": 1.00; before 100, now 100, 1 rounds" in capsys.readouterr().out


def test_disturbed_round_does_not_shift_the_rounds_after_it(capsys):
    older = samples(decode8=[100.0, 100.0], http8=[10.0, 20.0])
    newer = samples(decode8=[100.0, 100.0], http8=[10.0, 20.0])
    del newer.samples["tiny"]["blazr bf16"]["http8"]["round 0"]
    print_ratios(older, newer)
    assert "http8: 1.00; before 20, now 20, 1 rounds" in capsys.readouterr().out
