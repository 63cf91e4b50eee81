"""Usage reports: groups and filters, wrong queries, CSV files, the command."""

from __future__ import annotations

from datetime import timedelta

import pytest

from blazr_site.cli import main
from inference.access.api_keys import api_key_create
from inference.errors import InvalidRequest
from inference.models import UsageDay
from inference.records.energy_price import energy_price_choose
from inference.records.usage_report import csv_chunks, csv_text, usage_objects, usage_query
from tests.inference.records.test_usage import NOON, record, store


def ask(**parts):
    given = {"first": "2026-11-01", "last": "2026-11-30", "group_by": None, "tenant": None, "model": None}
    return usage_query(**given | parts)


def test_groups_filters_and_names(db, writer):
    row, _ = api_key_create(name="team")
    tenant = f"key:{row.pk}"
    store(
        writer,
        record("a", tenant=tenant),
        record("b", tenant=tenant, model="other"),
        record("c", tenant="local"),
        record("d", tenant="local", created_at=NOON - timedelta(days=60)),
    )
    by_key = {item["key"]: item for item in usage_objects(ask(group_by="key"))}
    assert set(by_key) == {row.prefix, "local"}
    assert by_key[row.prefix]["key_name"] == "team"
    assert by_key[row.prefix]["requests"] == 2
    assert by_key[row.prefix]["total_tokens"] == 26
    assert by_key["local"]["requests"] == 1
    (total,) = usage_objects(ask(group_by=""))
    assert total["requests"] == 3
    assert total["engine_seconds"] == 1.5
    assert "key" not in total
    days = usage_objects(ask(tenant=tenant))
    assert [(item["day"], item["model"]) for item in days] == [("2026-11-20", "other"), ("2026-11-20", "tiny")]
    assert [item["model"] for item in usage_objects(ask(group_by="model", model="other"))] == ["other"]
    assert usage_objects(ask(last="2026-11-19")) == []


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ({"first": "yesterday"}, "from"),
        ({"last": "2026-13-01"}, "to"),
        ({"first": "2026-12-01"}, "from"),
        ({"first": "1900-01-01"}, "from"),
        ({"first": None, "last": "0001-01-05"}, "to"),
        ({"group_by": "key,colour"}, "group_by"),
        ({"group_by": "key,key"}, "group_by"),
    ],
)
def test_wrong_questions_are_refused_by_name(parts, param):
    with pytest.raises(InvalidRequest) as caught:
        ask(**parts)
    assert caught.value.param == param


def test_files_are_cut_into_chunks_and_hold_no_formula(db, writer):
    store(writer, *(record(f"r{number}", model=f"m{number:04}") for number in range(600)))
    chunks = list(csv_chunks(ask(group_by="model")))
    assert len(chunks) == 3
    lines = "".join(chunks).splitlines()
    assert lines[0].startswith("model,requests,prompt_tokens")
    assert len(lines) == 601
    assert lines[1].startswith("m0000,1,10,4,3,")
    assert csv_text([["=1+1", "-2", -2, 'a"b']]) == '\'=1+1,\'-2,-2,"a""b"\r\n'


def test_the_command_prints_a_table_and_a_file(db, writer, monkeypatch, capsys):
    monkeypatch.setattr("blazr_site.cli.set_up", lambda arguments, needs: None)
    monkeypatch.setenv("COLUMNS", "200")
    span = ("--from", "2026-11-01", "--to", "2026-11-30")
    assert main(["usage", *span]) == 0
    assert "Nothing was used" in capsys.readouterr().out
    store(writer, record("a", tenant="local", completion_tokens=1234))
    assert main(["usage", *span, "--by", "key,model"]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["key", "name", "model"]
    assert line.split()[:2] == ["local", "tiny"]
    assert "1,234" in line
    assert main(["usage", *span, "--csv", "--key", "local"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("2026-11-20,local,,tiny,1,10,4,1234")
    assert main(["usage", "--by", "colour"]) == 2
    assert "colour" in capsys.readouterr().err


def test_energy_and_its_cost_are_summed_where_they_are_known(db, writer, monkeypatch, capsys):
    store(writer, record("a", tenant="local"), record("b", tenant="local", model="other"), record("c", tenant="user:1"))
    UsageDay.objects.filter(tenant="local").update(joules=1800.0)
    names = ("energy_wh", "energy_cost", "currency")

    def known(**parts) -> list[tuple]:
        return [tuple(row[name] for name in names) for row in usage_objects(ask(**parts))]

    assert known(group_by="key") == [(1.0, None, None), (None, None, None)]
    energy_price_choose(per_kwh="0.30", currency="EUR", author_name="edwin")
    assert known(group_by="key") == [(1.0, 0.0003, "EUR"), (None, None, None)]
    assert known(group_by="") == [(1.0, 0.0003, "EUR")]
    assert known(group_by="model", tenant="local") == [(0.5, 0.00015, "EUR")] * 2
    lines = "".join(csv_chunks(ask(group_by="key"))).splitlines()
    assert [line.split(",")[-3:] for line in lines] == [list(names), ["1.0", "0.0003", "EUR"], ["", "", ""]]
    monkeypatch.setattr("blazr_site.cli.set_up", lambda arguments, needs: None)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["usage", "--from", "2026-11-01", "--to", "2026-11-30", "--by", "key"]) == 0
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split()[-4:] == ["energy", "Wh", "cost", "currency"]
    assert first.split()[-3:] == ["1.0", "0.0003", "EUR"] and second.split()[-3:] == ["–", "–", "–"]
