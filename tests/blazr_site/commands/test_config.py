"""``blazr config``: values in force with their sources, secrets masked."""

from __future__ import annotations

import json

import pytest

from blazr_site.settings.in_force import MASK, masked
from tests.blazr_site.test_cli import blazr


def rows(done) -> dict[str, dict[str, object]]:
    return {row["key"]: row for row in json.loads(done.stdout)["settings"]}


def test_each_value_is_shown_with_its_source(tmp_path):
    file = tmp_path / "site.toml"
    file.write_text('port = 8081\nmax_num_seqs = 7\nkeep_alive_s = 60\n[[models]]\nmodel = "demo"\nname = "d"\n')
    options = ("--config", str(file), "--data-dir", str(tmp_path / "data"), "--keep-alive", "9", "--no-auth")
    variables = {"BLAZR_MAX_NUM_SEQS": "8", "BLAZR_SECRET_KEY": "hunter2", "REDIS_URL": "redis://:hunter2@cache:6379/0"}
    done = blazr("config", "--json", *options, **variables)
    assert done.returncode == 0, done.stderr
    found = rows(done)
    assert (found["port"]["value"], found["port"]["source"], found["port"]["place"]) == (8081, "file", f"{file}: port")
    assert (found["max_num_seqs"]["value"], found["max_num_seqs"]["source"]) == ("8", "environment")
    assert (found["keep_alive_s"]["value"], found["keep_alive_s"]["place"]) == ("9", "--keep-alive")
    assert (found["no_auth"]["value"], found["no_auth"]["source"]) == ("true", "command line")
    assert (found["quant"]["value"], found["quant"]["source"]) == ("auto", "default")
    assert found["redis_url"]["value"] == f"redis://:{MASK}@cache:6379/0"
    assert json.loads(done.stdout)["models"][0]["name"] == "d"
    table = blazr("config", *options, **variables)
    assert "hunter2" not in done.stdout + table.stdout
    assert f"file, {file}: port" in table.stdout
    assert table.stdout.rstrip().endswith(f"file: {file}")
    assert not (tmp_path / "data").exists(), "showing creates nothing"


def test_variables_without_effect_are_named(tmp_path):
    done = blazr("config", BLAZR_BATCH_WINDOW="3", BLAZR_PROT="1", BLAZR_DATA_DIR=str(tmp_path))
    assert done.returncode == 0
    assert "warning: The environment variable BLAZR_BATCH_WINDOW is retired" in done.stderr
    assert "BLAZR_PROT is unknown and has no effect. Did you mean BLAZR_PORT?" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--port", "eighty"), "error: --port is 'eighty', it must be a whole number from 0 to 65535."),
        (("--config", "none.toml"), "none.toml can't be read: No such file or directory."),
    ],
)
def test_a_wrong_setting_is_one_line(tmp_path, options, words):
    done = blazr("config", "--data-dir", str(tmp_path), *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_secrets_are_masked():
    assert masked("abc") == MASK
    assert masked("postgres://user:pass@host:5432/name") == f"postgres://user:{MASK}@host:5432/name"
    assert masked("redis://cache:6379/0") == "redis://cache:6379/0"
    for password in ("pa:ss", "p@ss", ":p@s/s:", "pa?s#s"):
        assert masked(f"redis://:{password}@cache:6379/0") == f"redis://:{MASK}@cache:6379/0"
    assert masked("unix:///run/r.sock?db=0&password=pass&x=1") == f"unix:///run/r.sock?db=0&password={MASK}&x=1"
