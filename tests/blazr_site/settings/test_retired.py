"""Variables of earlier versions: their advice is right, and some are still read."""

from __future__ import annotations

import json
import re

import pytest
from django.core.exceptions import ImproperlyConfigured

from blazr_site.settings import read
from blazr_site.settings.retired import RETIRED, former_integer
from tests.blazr_site.settings.harness import run_python


def test_a_retired_variable_is_no_setting_and_its_advice_names_settings():
    assert not RETIRED.keys() & read.KNOWN.keys()
    for name, old in RETIRED.items():
        named = set(re.findall(r"BLAZR_[A-Z_]+[A-Z]", old.advice))
        assert named <= read.KNOWN.keys(), name
        assert old.advice.endswith("."), name


def test_what_is_still_read_gives_way_to_nothing_but_itself(monkeypatch):
    monkeypatch.setenv("BLAZR_KEY_RPM", "7")
    assert former_integer("BLAZR_KEY_RPM", 600, low=1) == 7
    monkeypatch.delenv("BLAZR_KEY_RPM")
    assert former_integer("BLAZR_KEY_RPM", None, low=1) is None
    monkeypatch.setenv("BLAZR_KEY_RPM", "0")
    with pytest.raises(ImproperlyConfigured, match="BLAZR_KEY_RPM is '0', it must be a whole number from 1"):
        former_integer("BLAZR_KEY_RPM", None, low=1)


def test_days_and_limits_of_an_old_environment_hold(tmp_path):
    code = (
        "import json; from blazr_site import settings as s; print(json.dumps([s.BLAZR_FILE_EXPIRE_DAYS,"
        " s.BLAZR_RESPONSE_RETENTION_DAYS, s.BLAZR_REQUEST_LOG_DAYS, s.BLAZR_KEY_RPM, s.BLAZR_KEY_TPM]))"
    )
    variables = {
        "BLAZR_RETENTION_DAYS": "14",
        "BLAZR_FILE_EXPIRE_DAYS": "0",
        "BLAZR_KEY_LIMITS": "tpm=5",
        "BLAZR_KEY_RPM": "6",
    }
    done = run_python(code, BLAZR_DATA_DIR=str(tmp_path), **variables)
    assert json.loads(done.stdout) == [0, 14, 14, 6, 5], done.stderr
