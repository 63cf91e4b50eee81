"""Runs are started, stopped and forgotten; wrong directories, names and options start nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import User

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import Conflict, InvalidRequest, NotFound, PermissionRefused
from models_registry.aliases import alias_demand, alias_get, alias_promote
from models_registry.models import Checkpoint, ModelAlias, RunStep, TrainingRun
from models_registry.runs import services
from models_registry.runs.services import (
    DEFAULTS,
    run_create,
    run_delete,
    run_get,
    run_list,
    run_models,
    run_resume,
    run_steps,
    run_stop,
    run_update,
)
from models_registry.runs.watching import run_look
from models_registry.services import checkpoint_register
from tests.models_registry.runs.trainers import oxidizr_step

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]


def test_a_run_has_the_directorys_name_and_the_defaults(run: TrainingRun, directory: Path) -> None:
    assert (run.name, run.directory, run.state, str(run)) == ("nano", str(directory), "watching", "nano (watching)")
    assert {name: getattr(run, name) for name in DEFAULTS} == dict(DEFAULTS)
    assert (run_get(run.pk), run_list(), run_steps(run)) == (run, [run], [])


def test_a_taken_name_gets_a_number(directory: Path) -> None:
    alias_promote(name="nano", checkpoint=checkpoint_register(path=PREBUILT_DIRECTORY, served_model_name="tiny"))
    assert run_create(directory=directory).name == "nano-2"


def test_a_run_of_the_same_directorys_name_gets_a_number(run: TrainingRun, directory: Path) -> None:
    other = directory.parent / "other" / directory.name
    other.mkdir(parents=True)
    assert [run.name, run_create(directory=other).name] == ["nano", "nano-2"]


def test_an_alias_goes_on_if_it_is_named(directory: Path, looks) -> None:
    run = TrainingRun.objects.get()
    oxidizr_step(directory, 1)
    looks(2)
    run_delete(run)
    assert run_create(directory=directory, name="nano").name == "nano"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "a/b"}, "^name is 'a/b'"), ({"prompts": []}, "there are 0 prompts; give 1 to 8"),
        ({"prompts": ["a"] * 9}, "there are 9 prompts"), ({"prompts": ["a", " "]}, "prompts is empty"),
        ({"prompts": ["a" * 4001]}, "a prompt has 4001 characters; at most 4000"), ({"text": ""}, "text is empty"),
        ({"prompts": ["a\0"]}, "null character"), ({"max_tokens": 0}, "max_tokens is 0; it must be 1 to 512"),
        ({"max_tokens": 513}, "max_tokens is 513"), ({"loss_tokens": 1}, "loss_tokens is 1; it must be 2 to 4096"),
        ({"max_seconds": 3601}, "max_seconds is 3601"), ({"temperature": 2.5}, "temperature is 2.5; it must be 0 to 2"),
        ({"temperature": float("nan")}, "temperature is nan"), ({"seed": -1}, "seed is -1"),
        ({"seed": 1 << 63}, "seed is"), ({"colour": 1}, "colour is not an option of a run"),
        ({"text": "ä" * 20_000}, "text has 40000 bytes"),
    ],
)  # fmt: skip
def test_wrong_values_start_nothing(directory: Path, values: dict, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        run_create(directory=directory, **values)
    assert not TrainingRun.objects.exists()


def test_wrong_directories_are_refused(directory: Path, tmp_path: Path) -> None:
    for place in (directory / "nothing", directory / "config.json"):
        with pytest.raises(InvalidRequest, match=r"can't be watched: (No such file|Not a) .*; name the directory that"):
            run_create(directory=place)
    for place in ("a\0b", "a" * 4001):
        with pytest.raises(InvalidRequest, match="no path of a directory"):
            run_create(directory=place)
    with pytest.raises(PermissionRefused, match="in no directory of the server's settings"):
        run_create(directory=tmp_path)
    assert run_create(directory=tmp_path, by_operator=True).directory == str(tmp_path)


def test_a_directory_is_watched_once_and_a_name_belongs_to_one(run: TrainingRun, directory: Path) -> None:
    with pytest.raises(Conflict, match="is watched already, as 'nano'"):
        run_create(directory=directory)
    other = directory.with_name("other")
    other.mkdir()
    with pytest.raises(Conflict, match="'nano' is another run's"):
        run_create(directory=other, name="nano")
    checkpoint_register(path=PREBUILT_DIRECTORY, served_model_name="tiny")
    with pytest.raises(Conflict, match="'tiny' is the name of a checkpoint"):
        run_create(directory=other, name="tiny")


def test_an_alias_that_demands_a_passport_is_no_runs(directory: Path) -> None:
    alias_promote(name="chat", checkpoint=checkpoint_register(path=PREBUILT_DIRECTORY, served_model_name="tiny"))
    alias_demand(name="chat", demands_passport=True)
    with pytest.raises(Conflict, match="the alias 'chat' demands a passport; a run's alias means each checkpoint"):
        run_create(directory=directory, name="chat")


def test_there_is_a_most(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MAX_RUNS", 0)
    with pytest.raises(Conflict, match="0 runs are watched, the most that are kept; forget one"):
        run_create(directory=directory)


def test_stop_and_go_on(run: TrainingRun, directory: Path, staff: User, settings) -> None:
    run_stop(run, staff.username)
    assert (run_get(run.pk).state, run_get(run.pk).reason) == ("stopped", "stopped by vera")
    RunStep.objects.create(run=run, name="x", everything="", seen_at=run.created_at, num_failures=3, problem="no")
    settings.BLAZR_WATCHED_DIRECTORIES = []
    with pytest.raises(PermissionRefused):
        run_resume(run)
    run_resume(run, by_operator=True)
    step = run.steps.get()
    assert (run_get(run.pk).state, step.num_failures, step.problem) == ("watching", 0, "")


def test_options_change_for_what_comes(run: TrainingRun) -> None:
    run_update(run, seed=5, prompts=["one"], text=None)
    run.refresh_from_db()
    assert (run.seed, run.prompts, run.text) == (5, ["one"], DEFAULTS["text"])
    run_update(run)


def test_a_forgotten_run_leaves_its_models_unless_told(run: TrainingRun, directory: Path, looks) -> None:
    for number in (1, 2, 3):
        oxidizr_step(directory, number)
    looks(2)
    alias_promote(name="chat", checkpoint=run.steps.get(number=2).checkpoint)
    run_delete(run)
    assert (Checkpoint.objects.count(), len(alias_get("nano").revisions.all())) == (3, 3)
    again = run_create(directory=directory, name="nano")
    for _ in range(2):
        run_look(again)
    assert [row.served_model_name for row in run_models(again)] == ["nano-step-1", "nano-step-3"]
    run_delete(again, with_models=True)
    assert [row.served_model_name for row in Checkpoint.objects.all()] == ["nano-step-2"]
    assert list(ModelAlias.objects.values_list("name", flat=True)) == ["chat"]
    assert len(list(directory.glob("*.safetensors"))) == 3
    with pytest.raises(NotFound, match="there is no training run"):
        run_get(again.pk)


def test_a_model_that_an_alias_means_since_stays_when_its_run_is_forgotten(
    run: TrainingRun, directory: Path, looks, monkeypatch
) -> None:
    for number in (1, 2):
        oxidizr_step(directory, number)
    looks(2)
    models = run_models(run)
    monkeypatch.setattr(services, "run_models", lambda run: models)  # a moment before the promotion
    alias_promote(name="live", checkpoint=Checkpoint.objects.get(served_model_name="nano-step-1"))
    run_delete(run, with_models=True)
    assert [row.served_model_name for row in Checkpoint.objects.all()] == ["nano-step-1"]
