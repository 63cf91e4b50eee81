"""What is typed and what is shown."""

from __future__ import annotations

import io

from blazr_site.chat.screen import DIM, RESET, Screen, is_open, without_quotes


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_models_text_steers_no_terminal():
    output = Tty()
    Screen(output).write("a\tb\x1b]0;title\x07🙂")
    assert output.getvalue() == "a\tb\\x1b]0;title\\x07🙂"


def test_three_quotes_hold_several_lines():
    assert is_open('"""') and is_open('"""a\nb') and is_open('  """a""')
    assert not is_open("a") and not is_open('"""a"""') and not is_open('""""""')
    assert without_quotes('"""\na\n b"""') == "a\n b"
    assert without_quotes('"""a') == '"""a'


def test_thinking_is_dim_on_a_terminal_and_elsewhere_beside(capsys):
    tty = Tty()
    screen = Screen(tty)
    screen.write("hm", dim=True)
    screen.write("yes")
    screen.line("end", dim=True)
    screen.error("two\nlines")
    assert tty.getvalue() == f"{DIM}hm{RESET}yes{DIM}end\n{RESET}\x1b[31merror:\x1b[0m two lines\n"
    file = io.StringIO()
    screen = Screen(file)
    screen.write("hm", dim=True)
    screen.write("yes")
    assert file.getvalue() == "yes"
    assert capsys.readouterr().err == "hm"
