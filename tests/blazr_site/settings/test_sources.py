"""Where settings come from: precedence, the file that is found, its errors; nothing else reads the environment."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from blazr_site import process_environment
from blazr_site.process_environment import ProcessOptions, use_options
from blazr_site.settings import sources
from tests.blazr_site.settings.harness import ROOT, run_python

EXAMPLE = re.search(r"```toml\n(.*?)```", (ROOT / "docs" / "configuration.md").read_text(), re.DOTALL)[1]

READERS = {
    "blazr_site/process_environment.py": "options and environment of child processes",
    "inference/modelling/backends/native/build.py": "the native build runs without settings",
    "inference/modelling/backends/backend.py": "Triton's own switch",
    "inference/modelling/backends/triton/quantised.py": "Triton's own switch",
    "inference/text/tokenisation/sandbox.py": "environment of a child process",
    "models_registry/detection/child.py": "environment of a child process",
    "models_registry/pulls.py": "environment of a child process",
    "models_registry/job_process.py": "environment of a child process",
    "inference/host/cache_folder.py": "place of the user's caches",
    "models_registry/package_index.py": "environment of pip",
    "models_registry/hub.py": "the address of the hub, which is its library's setting",
    "blazr_site/commands/info.py": "the data directory, in a command without settings",
    "blazr_site/commands/set_up.py": "whether a data directory is named, before the settings are read",
    "blazr_site/server_client.py": "server and key of a client, which are no settings of a server",
}
"""Modules outside of ``blazr_site/settings`` that use ``os.environ``, with the reason."""


@pytest.fixture(autouse=True)
def own_sources(monkeypatch, tmp_path):
    """No options, no file but those of the test."""
    monkeypatch.setenv(process_environment._VARIABLE, "")
    monkeypatch.delenv("BLAZR_PORT", raising=False)
    monkeypatch.setenv("BLAZR_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "here").mkdir()
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    sources.config_file.cache_clear()
    yield
    sources.config_file.cache_clear()


def test_the_command_line_wins_then_the_environment_then_the_file(monkeypatch, tmp_path):
    assert sources.find("BLAZR_PORT") is None
    file = tmp_path / "here" / "blazr.toml"
    file.write_text("port = 1\n")
    sources.config_file.cache_clear()
    assert sources.find("BLAZR_PORT") == sources.Found(1, "file", f"{file}: port")
    monkeypatch.setenv("BLAZR_PORT", "2")
    assert sources.find("BLAZR_PORT") == sources.Found("2", "environment", "BLAZR_PORT")
    use_options(ProcessOptions({"BLAZR_PORT": ("--port", "3")}))
    assert sources.find("BLAZR_PORT") == sources.Found("3", "command line", "--port")


def test_an_empty_variable_is_unset(monkeypatch):
    monkeypatch.setenv("BLAZR_PORT", "")
    assert sources.find("BLAZR_PORT") is None


def test_the_file_of_the_option_comes_before_that_of_the_folder_and_of_the_data_directory(tmp_path):
    for place in ("data", "here", "."):
        (tmp_path / place / "blazr.toml").write_text("")
        sources.config_file.cache_clear()
        if place == ".":
            use_options(ProcessOptions(config_file=str(tmp_path / "blazr.toml")))
        assert sources.config_file().path == (tmp_path / place / "blazr.toml").absolute()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("port = ", "not a TOML file"),
        ("port = " + "9" * 5000, "not a TOML file"),
        ("port = " + "[" * 3000, "nested too deeply"),
        (None, "can't be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, content, words):
    path = tmp_path / "x.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ImproperlyConfigured, match=f"{path}.*{words}"):
        sources.read_file(path)


def test_a_byte_order_mark_at_the_start_is_skipped(tmp_path):
    path = tmp_path / "blazr.toml"
    path.write_bytes(b"\xef\xbb\xbfport = 1\r\n")
    assert sources.read_file(path).values == {"port": 1}


def settings_with(tmp_path: Path, toml: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """Read the settings in a process of its own, with a file."""
    (tmp_path / "here" / "blazr.toml").write_text(toml)
    return run_python(f"from blazr_site import settings\n{code}", cwd=tmp_path / "here")


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("max_num_seq = 4", "max_num_seq is unknown. Did you mean max_num_seqs?"),
        ("batch_window = 4", "batch_window is retired. Remove it: the value is fixed."),
        ("max_num_seqs = 'many'", "max_num_seqs is 'many', it must be a whole number from 1 to 4096."),
        ("max_num_seqs = true", "max_num_seqs is true, it must be a whole number from 1 to 4096."),
        ("port = 70000", "port is 70000, it must be a whole number from 0 to 65535."),
        ("no_auth = 3", "no_auth is 3, it must be true or false."),
        ("allowed_hosts = [1]", "allowed_hosts is [1], it must be a list of strings."),
        ("device = 'tpu'", "device is 'tpu', it must be auto, cpu, cuda or cuda:N, or several with commas between."),
        ("device = 'cuda:0,cpu:1'", "device is 'cuda:0,cpu:1', it must be auto, cpu, cuda or cuda:N"),
        ("quant = 'int3'", "quant is 'int3', it must be one of auto, none, int8, int4."),
        ("prefix_cache = {slots = 1}", "it must be on, off, or on,snapshots=BYTES,host=BYTES."),
        ("key_limits = {rpm = 0}", "it must be rpm=N with N a whole number from 1 to 1000000000."),
        ("memory_budget = '1KiB'", "memory_budget is '1KiB', it must be at least 1MiB."),
        ("port = 0x" + "f" * 5000, "port is too large a number, it must be a whole number from 0 to 65535."),
        ("memory_budget = 0x" + "f" * 5000, "memory_budget is too large a number, it must be a number of bytes"),
        ("redis_url = 'amqp://x'", "redis_url has the scheme 'amqp', it must look like redis://"),
        ("redis_url = 'redis://'", "redis_url needs a host"),
        ("database_url = 'mysql://u:hunter2@h/db'", "database_url has the scheme 'mysql', it must be a URL"),
        ("database_url = 'nonsense'", "database_url (scheme 'nonsense') can't be read"),
        ("secret_key = 5", "secret_key is wrong, it must be a string."),
        ("models = 3", "models must be tables, each under a line [[models]]."),
        ("[[models]]\nname = 'x'", "models[0] needs a key model"),
        ("[[models]]\nmodel = 'demo'\nqant = 'int8'", "models[0].qant is unknown. Did you mean quant?"),
        (
            "[[models]]\nmodel = 'demo'\nquant = 'int3'",
            "models[0].quant is 'int3'; it must be one of auto, none, int8, int4.",
        ),
        ("[[models]]\nmodel = 'demo'\nload = 1", "models[0].load is 1, it must be true or false."),
    ],
)
def test_a_wrong_file_is_refused_with_its_place_and_what_is_allowed(tmp_path, toml, words):
    done = settings_with(tmp_path, toml)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f"{tmp_path / 'here' / 'blazr.toml'}: " in last
    assert words in last


def test_the_example_of_the_documentation_is_in_force(tmp_path):
    code = (
        "import json; print(json.dumps([settings.BLAZR_PORT, settings.BLAZR_MEMORY_BUDGET, settings.BLAZR_KEY_RPM,"
        " settings.BLAZR_LLM_OPTIONS['snapshot_bytes'], settings.BLAZR_REQUEST_LOG_DAYS,"
        " settings.CSRF_TRUSTED_ORIGINS, [[m.model, m.name, m.settings] for m in settings.BLAZR_MODELS]]))"
    )
    done = settings_with(tmp_path, EXAMPLE, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        '[8080, 25769803776, 600, 2147483648, 14, ["https://llm.example.org"], [["demo", "small", {}], '
        '["HuggingFaceTB/SmolLM2-135M-Instruct", "chat", {"quant": "int8", "max_model_len": 4096, "pinned": "yes"}]]]'
    )


def test_every_key_of_the_table_may_stand_in_a_file(tmp_path):
    """With a value of its kind; unset variables take it."""
    code = "from blazr_site.settings import read; print(sorted(v.key for v in read.KNOWN.values()))"
    keys = ast.literal_eval(settings_with(tmp_path, "", code).stdout)
    assert len([key for key in keys if key not in ("redis_url", "database_url", "traces_endpoint")]) <= 35
    toml = "\n".join(f"{key} = []" for key in keys if key not in ("model", "allowed_hosts"))
    last = settings_with(tmp_path, toml).stderr.strip().splitlines()[-1]
    assert "it must be" in last
    assert "unknown" not in last


def test_paths_of_a_file_are_relative_to_its_folder(tmp_path):
    done = settings_with(
        tmp_path,
        "cache_dir = 'c'\ndata_dir = '../d'",
        "print(settings.BLAZR_LLM_OPTIONS['cache_dir'], settings.BLAZR_DATA_DIR)",
    )
    assert [Path(path).resolve() for path in done.stdout.split()] == [tmp_path / "here" / "c", tmp_path / "d"]


def test_only_the_settings_read_the_environment():
    found = set()
    for package in ("inference", "models_registry", "blazr_site"):
        for path in (ROOT / package).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            uses = any(
                isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv")
                for node in ast.walk(ast.parse(path.read_text()))
            )
            if uses and not name.startswith("blazr_site/settings/"):
                found.add(name)
    assert found == READERS.keys()
