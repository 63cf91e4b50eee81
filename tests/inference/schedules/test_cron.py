"""Cron expressions: what is refused, and their times against a search through all minutes, over changes of clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference.errors import InvalidRequest
from inference.schedules.cron import cron_parse, next_time, next_times, zone_names, zone_of

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)  # a Sunday
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Beirut", "America/Havana")
"""A change by half an hour (Lord Howe), changes at midnight (Beirut, Havana)."""
SPRING, AUTUMN = datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0 3 * * *", "2026-03-02 03:00"), ("30 12 * * *", "2026-03-01 12:30"), ("0 0 1 * *", "2026-04-01 00:00"),
     ("0 8 * * 1", "2026-03-02 08:00"), ("0 8 * * MON-fri", "2026-03-02 08:00"), ("0 8 * jun 7", "2026-06-07 08:00"),
     ("0 22-2/2 * * *", "2026-03-01 22:00"), ("*/15 * * * *", "2026-03-01 12:15"), ("0 0 29 2 *", "2028-02-29 00:00"),
     ("0 0 13 * 5", "2026-03-06 00:00"), ("0 0 */13 * 5", "2026-03-27 00:00"), ("0 0 * * fri-mon", "2026-03-02 00:00")],
)  # fmt: skip
def test_the_next_time_of_an_expression(text, expected):
    found = next_time(cron_parse(text), ZoneInfo("UTC"), NOON)
    assert f"{found:%Y-%m-%d %H:%M}" == expected
    assert next_time(cron_parse(text), ZoneInfo("UTC"), found) > found


@pytest.mark.parametrize(
    "text",
    ["", "* * * *", "0 0 * * * *", "61 * * * *", "x y z a b", "0 0 31 2 *", "0 24 * * *", "0 0 0 * *", "0 0 * 13 *",
     "0 0 * * 8", "*/0 * * * *", "5/10 * * * *", "1-5-7 * * * *", "0, * * * *", "-1 * * * *", "0 0 * * monday",
     "² * * * *", "mon 0 * * *", "0 0 1 1 1\0", "0 " * 200],
)  # fmt: skip
def test_expressions_that_name_no_time_are_refused(text):
    with pytest.raises(InvalidRequest) as caught:
        cron_parse(text)
    assert caught.value.param == "cron" and "cron is" in caught.value.message


@pytest.mark.parametrize("text", ["* * * * *", "*/4 * * * *", "0,3 2 * * *", "0,58 * * * *"])
def test_times_less_than_five_minutes_apart_are_refused(text):
    with pytest.raises(InvalidRequest, match="at least 5 minutes"):
        cron_parse(text)
    assert cron_parse(text, min_interval_min=0)  # what was stored before the limit


def test_neighbouring_days_count_for_the_interval():
    assert cron_parse("0,58 0,23 1 * *")
    with pytest.raises(InvalidRequest, match="23:58 and 00:00 2 min apart"):
        cron_parse("0,58 0,23 * * *")


def test_29_february_on_a_sunday_comes_after_28_years_or_40():
    found = next_times(cron_parse("0 0 29 2 */7"), ZoneInfo("UTC"), NOON, 4)
    assert [moment.year for moment in found] == [2032, 2060, 2088, 2128]


def test_zones_have_the_names_of_the_database():
    assert {"UTC", *ZONES} <= set(zone_names())
    for name in ("", "Berlin", "europe/berlin", "../etc/passwd", "Europe", "Europe/Berlin\0"):
        with pytest.raises(InvalidRequest, match="IANA"):
            zone_of(name)


def test_a_time_that_a_change_of_the_clocks_leaves_out_runs_at_the_next_minute():
    berlin = ZoneInfo("Europe/Berlin")
    found = next_times(cron_parse("30 2 * * *"), berlin, SPRING - DAY, 3)
    assert [moment.astimezone(berlin).strftime("%d %H:%M") for moment in found] == ["28 02:30", "29 03:00", "30 02:30"]
    found = next_times(cron_parse("*/30 2,3 * * *"), berlin, SPRING, 3)
    assert [moment.astimezone(berlin).strftime("%d %H:%M") for moment in found] == ["29 03:00", "29 03:30", "30 02:00"]


def test_a_time_that_comes_twice_runs_once():
    berlin = ZoneInfo("Europe/Berlin")
    found = next_times(cron_parse("30 2 * * *"), berlin, AUTUMN - DAY, 3)
    assert [moment.strftime("%d %H:%M") for moment in found] == ["24 00:30", "25 00:30", "26 01:30"]
    in_the_second_hour = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10 for the second time
    assert next_time(cron_parse("30 2 * * *"), berlin, in_the_second_hour) == found[2]


def _field(low: int, high: int):
    number = st.integers(low, high)
    part = st.one_of(
        number.map(str), st.just("*"), st.integers(1, 20).map(lambda step: f"*/{step}"),
        st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}"),
    )  # fmt: skip
    return st.lists(part, min_size=1, max_size=2).map(",".join)


def _allowed(field: str, low: int, high: int) -> set[int]:
    """The numbers of a field, by trying each; written without the parser."""
    found = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-") if span != "*" else (str(low), "-", str(high))
        numbers = range(int(first), int(last or first) + 1)
        found |= {number for number in numbers if (number - numbers[0]) % int(step or 1) == 0}
    return found


def _reference(text: str, zone: ZoneInfo, after: datetime, hours: int) -> list[datetime]:
    """Every wall clock's minute in turn: due if it matches, at the first minute from it on that the zone has."""
    minutes, hour, days, months, weekdays = (
        _allowed(field, low, high)
        for field, (low, high) in zip(text.split(), ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6)), strict=True)
    )
    fields = text.split()
    either = fields[2][0] != "*" and fields[4][0] != "*"
    # The moments of the span, in order, by the wall clock that each shows for the first time.
    shown: dict[datetime, datetime] = {}
    moment = after - timedelta(hours=5)
    while moment <= after + timedelta(hours=hours + 5):
        shown.setdefault(moment.astimezone(zone).replace(tzinfo=None), moment)
        moment += timedelta(minutes=1)
    found = set()
    wall, last = min(shown), max(shown)
    while wall <= last - timedelta(hours=4):
        is_day, is_weekday = wall.day in days, wall.isoweekday() % 7 in weekdays
        day = is_day or is_weekday if either else is_day and is_weekday
        if day and wall.minute in minutes and wall.hour in hour and wall.month in months:
            existing = wall
            while existing not in shown:
                existing += timedelta(minutes=1)
            found.add(shown[existing])
        wall += timedelta(minutes=1)
    return sorted(moment for moment in found if after < moment <= after + timedelta(hours=hours))


@settings(max_examples=25, deadline=None)
@given(
    text=st.tuples(_field(0, 59), _field(0, 23), _field(1, 31), _field(1, 12), _field(0, 6)).map(" ".join),
    name=st.sampled_from(ZONES),
    day=st.sampled_from([datetime(2026, 3, 7), datetime(2026, 3, 28), datetime(2026, 4, 4), datetime(2026, 10, 3),
                         datetime(2026, 10, 24), datetime(2026, 10, 31), datetime(2026, 7, 1)]),
    minute=st.integers(0, 1440),
)  # fmt: skip
@example("*/30 * * * *", "Europe/Berlin", datetime(2026, 10, 24), 1380)
@example("15,45 0-3 * * *", "Australia/Lord_Howe", datetime(2026, 10, 3), 700)
@example("0 0 * * *", "Asia/Beirut", datetime(2026, 3, 28), 600)
@example("0 0 29 2 */7", "UTC", datetime(2026, 7, 1), 0)
def test_times_are_those_of_a_search_through_all_minutes(text, name, day, minute):
    try:
        cron = cron_parse(text, min_interval_min=0)
    except InvalidRequest:  # a day that its months don't have
        return
    zone = ZoneInfo(name)
    after = day.replace(tzinfo=UTC) + timedelta(minutes=minute)
    expected = _reference(text, zone, after, 30)
    found, moment = [], after
    while (moment := next_time(cron, zone, moment)) <= after + timedelta(hours=30):
        found.append(moment)
    assert found == expected
