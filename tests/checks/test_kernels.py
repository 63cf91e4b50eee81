"""The check of the C++ kernels finds long functions and nothing else."""

from __future__ import annotations

from tests.checks.kernels import functions, long_functions


def test_functions_are_measured_from_their_first_line_to_the_closing_brace():
    source = "\n".join(
        [
            "constexpr int kRows = 6;  // a constant {",
            "template <typename T>",
            "void fill(",
            "    T* to, int count) {",
            "  for (int i = 0; i < count; ++i) to[i] = 0;",
            "}",
            "",
            "struct Matrix {",
            "  int rows;",
            "};",
        ]
    )
    assert list(functions(source)) == [("void fill(", 4)]


def test_the_kernels_keep_the_limit():
    assert list(long_functions()) == []
