"""What ``blazr serve`` registers and makes before it starts anything."""

from __future__ import annotations

import io
import shutil
import stat

import pytest
from django.contrib.auth import get_user_model
from rich.console import Console

from blazr_site.commands import serve
from blazr_site.settings.models import ConfiguredModel
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import ChecksumMismatch, Conflict, InvalidRequest
from inference.models import ApiKey
from models_registry.aliases import alias_checkpoint_id, alias_demand, alias_promote
from models_registry.models import Checkpoint
from models_registry.services import checkpoint_files_verify, checkpoint_register
from tests.inference.rows import make_checkpoint

CONSOLE = Console(quiet=True)


@pytest.mark.django_db
def test_a_configured_model_gets_its_name_settings_and_aliases():
    model = ConfiguredModel("demo", name="tiny", aliases=("best",), load=False, settings={"quant": "int8"})
    for _ in range(2):  # a second start changes nothing
        (served,) = serve._register([model], CONSOLE)
    row = Checkpoint.objects.get()
    assert (served.name, served.preload, served.example) == ("tiny", False, "text")
    assert (row.served_model_name, row.settings) == ("tiny", {"quant": "int8"})
    assert alias_checkpoint_id("best") == row.pk


@pytest.mark.django_db
def test_an_alias_that_demands_a_passport_waits_and_the_server_starts():
    alias_promote(name="best", checkpoint=make_checkpoint("earlier"))
    alias_demand(name="best", demands_passport=True)
    words = io.StringIO()
    serve._register([ConfiguredModel("demo", aliases=("best", "other"))], Console(file=words, width=200))
    row = Checkpoint.objects.get(served_model_name="demo")
    assert (alias_checkpoint_id("best") != row.pk, alias_checkpoint_id("other") == row.pk) == (True, True)
    assert (
        "note: the alias best demands a passport and stays as it is; of demo: it has none; make one on its page."
        in words.getvalue()
    )


@pytest.mark.django_db
def test_a_setting_of_the_page_stays_where_the_file_has_none():
    serve._register([ConfiguredModel("demo", settings={"quant": "int8", "max_num_seqs": 4})], CONSOLE)
    serve._register([ConfiguredModel("demo", settings={"quant": "none"})], CONSOLE)
    assert Checkpoint.objects.get().settings == {"quant": "none", "max_num_seqs": 4}


@pytest.mark.django_db
def test_without_models_the_demo_is_registered_once():
    assert [model.name for model in serve._register([], CONSOLE)] == ["demo"]
    assert [(model.name, model.preload) for model in serve._register([], CONSOLE)] == [("demo", True)]
    assert Checkpoint.objects.get().path == str(PREBUILT_DIRECTORY)


@pytest.mark.django_db
def test_an_update_may_replace_the_files_of_the_demo(tmp_path, monkeypatch):
    shipped = tmp_path / "demo"
    shutil.copytree(PREBUILT_DIRECTORY, shipped)
    monkeypatch.setattr(serve, "PREBUILT_DIRECTORY", shipped)
    row = checkpoint_register(path=shipped, served_model_name="demo")
    (shipped / "model.safetensors").rename(shipped / "old")
    shutil.copy(shipped / "old", shipped / "model.safetensors")
    with pytest.raises(ChecksumMismatch):
        checkpoint_files_verify(row)
    serve._register([], CONSOLE)
    checkpoint_files_verify(Checkpoint.objects.get())
    shutil.rmtree(shipped)
    assert serve._register([], CONSOLE)  # the server starts all the same
    assert Checkpoint.objects.get().state == "missing"


@pytest.mark.django_db
def test_a_model_that_is_not_there_is_refused():
    with pytest.raises(InvalidRequest, match="neither an existing path nor a HuggingFace id"):
        serve._register([ConfiguredModel("no such thing")], CONSOLE)


@pytest.mark.django_db
def test_the_first_password_is_kept_until_it_is_changed(tmp_path):
    password = serve.admin_password(tmp_path)
    assert password is not None
    assert serve.admin_password(tmp_path) == password
    assert stat.S_IMODE((tmp_path / "admin_password").stat().st_mode) == 0o600
    user = get_user_model().objects.get(username=serve.ADMIN_NAME)
    assert user.check_password(password)
    user.set_password("another")
    user.save()
    assert serve.admin_password(tmp_path) is None
    assert not (tmp_path / "admin_password").exists()


@pytest.mark.django_db
def test_the_first_key_is_kept_until_it_is_revoked(tmp_path):
    key = serve.first_api_key(tmp_path)
    assert key is not None
    assert serve.first_api_key(tmp_path) == key
    row = ApiKey.objects.get()
    row.revoked_at = row.created_at
    row.save()
    assert serve.first_api_key(tmp_path) is None


def test_a_data_directory_takes_one_server(tmp_path):
    with serve._only_one(tmp_path), pytest.raises(Conflict, match="another blazr serve"), serve._only_one(tmp_path):
        pass
    with serve._only_one(tmp_path):
        assert (tmp_path / "serve.lock").exists()


def test_the_printed_command_fits_the_model():
    chat = serve.curl_line("http://h:1", serve.ServedModel("id", "m", True, "chat"), None)
    assert "/v1/chat/completions" in chat and '"messages": [{"role": "user"' in chat
    with_text = serve.ServedModel("id", "m", True, "text")
    assert "Bearer key" in serve.curl_line("http://h:1", with_text, "key")
    ids_only = serve.curl_line("http://h:1", serve.ServedModel("id", "m", True, "token_ids"), None)
    assert '"prompt": [1, 2, 3]' in ids_only
    assert "Authorization" not in ids_only
