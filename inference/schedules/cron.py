"""Parse cron expressions of five fields, and find their times in a time zone.

The fields are those of cron(5). A local time that a change of the clocks leaves out runs at the next minute that there
is; one that comes twice runs the first time.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

from inference.errors import InvalidRequest

MAX_CHARS = 100
"""Of an expression."""
MIN_INTERVAL_MIN = 5
"""Fewest minutes between two times of an expression."""
MAX_YEARS = 41
"""Longest search for a day: 29 February falls on one weekday every 28 years, every 40 over the year 2100."""
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MINUTE = timedelta(minutes=1)
_EXAMPLE = "five fields (minute hour day month weekday), such as '0 3 * * *'"


@dataclass(frozen=True, slots=True)
class _Field:
    """What a field of an expression may have: numbers from ``low`` to ``high``, or names of them."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    first_named: int = 0

    def number(self, text: str) -> int:
        """Return the number of a value, 7 for a Sunday included.

        Raises:
            ValueError: It is none of this field.
        """
        if text in self.names:
            return self.names.index(text) + self.first_named
        if not re.fullmatch("[0-9]{1,2}", text) or not self.low <= int(text) <= self.high:
            raise ValueError(text)
        return int(text)

    def numbers(self, text: str) -> set[int]:
        """Return the numbers of a part of a list, such as ``*/15``, ``8-17`` or ``mon``.

        Raises:
            ValueError: The part is malformed.
        """
        found = re.fullmatch(r"(\*|(\w+)(?:-(\w+))?)(?:/([0-9]{1,2}))?", text, re.ASCII)
        if found is None or (found[4] is not None and found[1] != "*" and found[3] is None):
            raise ValueError(text)
        step = 1 if found[4] is None else int(found[4])
        if step < 1:
            raise ValueError(text)
        if found[1] == "*":
            return set(range(self.low, min(self.high, 6 if self.name == "weekday" else self.high) + 1, step))
        first = self.number(found[2])
        last = first if found[3] is None else self.number(found[3])
        if last >= first:
            return set(range(first, last + 1, step))
        # Over the end, as from Friday to Monday or from 22 to 4 o'clock.
        size = 7 if self.name == "weekday" else self.high - self.low + 1
        return {(number - self.low) % size + self.low for number in range(first, last + size + 1, step)}


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day", 1, 31),
    _Field("month", 1, 12, MONTHS, 1),
    _Field("weekday", 0, 7, WEEKDAYS),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression.

    Attributes:
        text: The expression, with single spaces.
        minutes, hours, days, months, weekdays: The numbers of each field in order; weekdays from 0, a Sunday, to 6.
        is_either_day: A day has to be one of ``days`` or of ``weekdays``; else of both. True if neither field begins
            with an asterisk, as in cron(5).
    """

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    is_either_day: bool

    def matches(self, day: date) -> bool:
        """Whether the expression has any time on a day."""
        if day.month not in self.months:
            return False
        is_day, is_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return is_day or is_weekday if self.is_either_day else is_day and is_weekday


def cron_parse(text: str, *, min_interval_min: int = MIN_INTERVAL_MIN) -> Cron:
    """Parse an expression.

    Args:
        min_interval_min: Fewest minutes between two of its times; 0 for stored expressions, which may be older than the
            limit.

    Raises:
        InvalidRequest: It is malformed, matches no time, or has times that are closer together.
    """
    fields = text.lower().split()
    if len(fields) != len(_FIELDS) or len(text) > MAX_CHARS:
        raise InvalidRequest(f"cron is {text[:60]!r}; it must have {_EXAMPLE}.", param="cron")
    found: list[tuple[int, ...]] = []
    for field, value in zip(_FIELDS, fields, strict=True):
        try:
            numbers = set().union(*(field.numbers(part) for part in value.split(",")))
        except ValueError:
            raise InvalidRequest(
                f"cron is {text[:60]!r}, whose {field.name} {value[:30]!r} isn't understood; use *, numbers from "
                f"{field.low} to {field.high}, ranges such as {field.low}-{field.low + 4}, steps such as */2, and "
                "lists of these with commas.",
                param="cron",
            ) from None
        found.append(tuple(sorted({number % 7 for number in numbers} if field.name == "weekday" else numbers)))
    is_either_day = not fields[2].startswith("*") and not fields[4].startswith("*")
    minutes, hours, days, months, weekdays = found
    cron = Cron(" ".join(fields), minutes, hours, days, months, weekdays, is_either_day)
    if next(_days(cron, date(2000, 1, 1)), None) is None:
        raise InvalidRequest(
            f"cron is {text[:60]!r}, whose day and month never come together; change one of them.", param="cron"
        )
    _check_interval(cron, min_interval_min)
    return cron


def _check_interval(cron: Cron, min_interval_min: int) -> None:
    times = [hour * 60 + minute for hour in cron.hours for minute in cron.minutes]
    pairs = [(later - earlier, earlier, later) for earlier, later in itertools.pairwise(times)]
    day = 24 * 60
    over_midnight = (times[0] + day - times[-1], times[-1], times[0])
    if over_midnight[0] < min_interval_min and _has_neighbours(cron):
        pairs.append(over_midnight)
    minutes, earlier, later = min(pairs, default=(day, 0, 0))
    if minutes < min_interval_min:
        raise InvalidRequest(
            f"cron is {cron.text!r}, with {_clock(earlier)} and {_clock(later)} {minutes} min apart; at least "
            f"{min_interval_min} minutes must lie between two times. Use a longer step, such as */{min_interval_min}.",
            param="cron",
        )


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _has_neighbours(cron: Cron) -> bool:
    """Whether any two days in a row match."""
    previous = date.min
    for day in _days(cron, date(2000, 1, 1)):
        if day - previous == timedelta(days=1):
            return True
        previous = day
    return False


def _days(cron: Cron, first: date) -> Iterator[date]:
    """Yield the days that match, from ``first`` on."""
    for number in range(MAX_YEARS * 366):
        day = first + timedelta(days=number)
        if cron.matches(day):
            yield day


@functools.cache
def zone_names() -> tuple[str, ...]:
    """Return the names of the time zones, in order."""
    return tuple(sorted(available_timezones()))


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone.

    Raises:
        InvalidRequest: There is none of this name.
    """
    if name not in zone_names():
        raise InvalidRequest(
            f"time_zone is {name[:60]!r}; it must be a name of the IANA database, such as UTC or Europe/Berlin.",
            param="time_zone",
        )
    return ZoneInfo(name)


def next_time(cron: Cron, zone: ZoneInfo, after: datetime) -> datetime:
    """Return the first time after ``after``, in UTC.

    Args:
        after: An aware moment.
    """
    start = after.astimezone(zone).replace(tzinfo=None)
    for day in _days(cron, start.date()):
        for hour in cron.hours:
            for minute in cron.minutes:
                local = datetime(day.year, day.month, day.day, hour, minute)  # a wall clock's
                if local <= start - timedelta(minutes=1):
                    continue
                moment = _moment(local, zone)
                if moment > after:
                    return moment
    raise InvalidRequest(f"cron is {cron.text!r}, which has no further time; change it.", param="cron")


def next_times(cron: Cron, zone: ZoneInfo, after: datetime, number: int) -> list[datetime]:
    """Return the next ``number`` times after ``after``, in UTC."""
    found: list[datetime] = []
    for _ in range(number):
        after = next_time(cron, zone, after)
        found.append(after)
    return found


def _moment(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment of a wall clock's time: the first of two, or the first minute after a gap that has it."""
    while True:
        moment = local.replace(tzinfo=zone).astimezone(UTC)
        if moment.astimezone(zone).replace(tzinfo=None) == local:
            return moment
        local += _MINUTE
