"""``blazr chat`` in a terminal: with a server over HTTP, and with a model in the process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.blazr_site.chat.fake_server import KEY, FakeServer, fake_server
from tests.blazr_site.chat.terminal import ROOT, Terminal

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as found:
        found.reply({"role": "assistant", "content": ""}, {"content": "Hello, "}, {"content": "world"})
        yield found


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_a_chat_with_a_server(server, terminals, tmp_path):
    terminal = Terminal(["chat", "--server", server.url, "--system", "Be brief."], tmp_path, BLAZR_API_KEY=KEY)
    terminals.append(terminal)
    terminal.wait(f"one ({server.url})")
    terminal.type("Hi there")
    terminal.wait("Hello, world\n")
    assert "3 tokens, " in terminal.wait("tokens/s")
    terminal.type("/set temperature 0.5")
    terminal.wait("temperature 0.5")
    terminal.type("/model two")
    terminal.wait("model two")
    terminal.type("And you?")
    terminal.wait(lambda shown: shown.count("tokens/s") == 2)
    first, second = server.bodies
    assert first["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi there"}]
    assert (second["model"], second["temperature"], first["stream"]) == ("two", 0.5, True)
    assert [item["content"] for item in second["messages"]] == ["Be brief.", "Hi there", "Hello, world", "And you?"]
    terminal.type("fail")
    terminal.wait("error: the message is refused; send another one.")
    terminal.type('"""line one')
    terminal.type('line two"""')
    terminal.wait(lambda shown: shown.count("tokens/s") == 3)
    assert server.bodies[-1]["messages"][-1]["content"] == "line one\nline two"
    terminal.type("/save talk.json")
    terminal.wait("6 messages in talk.json")
    assert json.loads((tmp_path / "talk.json").read_text())["messages"][-1]["content"] == "Hello, world"
    terminal.type("/clear")
    terminal.type("/load talk.json")
    terminal.wait("6 messages from talk.json")
    terminal.type("/model three")
    terminal.wait("has no model 'three': it has one, two")
    terminal.keys("C-d")
    terminal.wait("ended with 0")


def test_an_interrupt_ends_the_answer_and_not_the_program(server, terminals, tmp_path):
    server.reply(*({"content": f"word{number} "} for number in range(500)))
    server.pause_s = 0.05
    terminal = Terminal(["chat", "two", "--server", server.url, "--key", KEY], tmp_path)
    terminals.append(terminal)
    terminal.wait(">>>")
    terminal.type("Count")
    terminal.wait("word5 ")
    terminal.keys("C-c")
    terminal.wait("stopped, first token after")
    assert server.is_left.wait(60), "the server still generates"
    server.reply({"reasoning_content": "hm, thinking"}, {"content": "yes\x1b[2Jno"})
    terminal.type("Go on")
    assert "hm, thinking" in terminal.wait("yes\\x1b[2Jno")
    terminal.wait(lambda shown: shown.count("first token after") == 2)
    styled = terminal.styled()
    assert "\x1b[2mhm, thinking" in styled
    assert server.bodies[-1]["messages"][1]["content"].startswith("word0 word1")
    terminal.keys("C-c")
    terminal.wait("Ctrl-D ends the chat.")
    terminal.type("/bye")
    terminal.wait("ended with 0")


def test_a_chat_in_the_process(terminals, tmp_path):
    terminal = Terminal(["chat", "demo", "--cpu", "--data-dir", str(tmp_path / "data")], tmp_path)
    terminals.append(terminal)
    terminal.wait("demo (this process)")
    terminal.type("/set max_tokens 12")
    terminal.type("What is a list?")
    terminal.wait("12 tokens, ")
    terminal.keys("C-c")
    terminal.wait("Ctrl-D ends the chat.")
    terminal.type("/set max_tokens 5")
    terminal.type("More")
    terminal.wait("5 tokens, ")
    terminal.type("/model /nowhere")
    terminal.wait("neither an existing path nor")
    terminal.keys("C-d")
    terminal.wait("ended with 0")
    assert not (tmp_path / "data").exists()


def test_piped_text_is_answered(server, tmp_path):
    command = [sys.executable, "-m", "blazr_site.cli", "chat", "--server", server.url, "--key", KEY]
    done = subprocess.run(command, input="Hi\n", capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stdout) == (0, "Hello, world\n")
    assert "tokens/s" in done.stderr
    done = subprocess.run([*command[:-1], "wrong"], input="Hi", capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 2
    assert done.stderr == "error: a key is needed. (The key is --key or BLAZR_API_KEY.)\n"
    nobody = [*command[:-3], "http://127.0.0.1:9", "--key", KEY]
    done = subprocess.run(nobody, input="Hi", capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert "http://127.0.0.1:9 can't be reached (no server listens there" in done.stderr
