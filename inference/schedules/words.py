"""Say in words when a cron expression runs: "every day at 02:00 Europe/Berlin"."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from inference.schedules.cron import Cron

MAX_CLOCKS = 6
"""Most times of a day that are named one by one."""
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_WORKING_DAYS = (1, 2, 3, 4, 5)


def cron_words(cron: Cron, zone_name: str) -> str:
    """Return when an expression runs, in a time zone."""
    times, days = _times(cron), _days(cron)
    if days == "every day" and times.startswith("every "):
        days = ""
    months = "" if len(cron.months) == 12 else f"in {_listed([_MONTHS[number - 1] for number in cron.months])}"
    return " ".join(filter(None, (days, times, months, zone_name)))


def _times(cron: Cron) -> str:
    minutes, hours = cron.minutes, cron.hours
    if len(minutes) * len(hours) <= MAX_CLOCKS:
        return f"at {_listed([f'{hour:02}:{minute:02}' for hour in hours for minute in minutes])}"
    span = "" if len(hours) == 24 else f" from {hours[0]:02}:{minutes[0]:02} to {hours[-1]:02}:{minutes[-1]:02}"
    is_each_hour = _step(hours) == 1
    if is_each_hour and minutes[0] == 0 and (step := _step(minutes)) and minutes[-1] + step == 60:
        return f"every {step} minutes{span}"
    if len(minutes) == 1 and (step := _step(hours)):
        times = "every hour" if step == 1 else f"every {step} hours"
        if span:
            return f"{times}{span}"
        return times if minutes == (0,) else f"{times} at minute {minutes[0]}"
    listed = f"at minute{'s' * (len(minutes) > 1)} {_listed([str(number) for number in minutes])}"
    if len(hours) == 24:
        return f"{listed} of every hour"
    if is_each_hour:
        return f"{listed} of every hour from {hours[0]} to {hours[-1]} o'clock"
    return f"{listed} of the hours {_listed([str(number) for number in hours])}"


def _step(numbers: Sequence[int]) -> int:
    """Return the distance of evenly spaced numbers; 0: they aren't, or there is one alone."""
    steps = {later - earlier for earlier, later in itertools.pairwise(numbers)}
    return steps.pop() if len(steps) == 1 else 0


def _days(cron: Cron) -> str:
    is_any_day, is_any_weekday = len(cron.days) == 31, len(cron.weekdays) == 7
    days = f"on day{'s' * (len(cron.days) > 1)} {_listed([str(number) for number in cron.days])} of the month"
    if cron.is_either_day:
        return "every day" if is_any_day or is_any_weekday else f"{days} and {_weekdays(cron.weekdays)}"
    if is_any_day:
        return "every day" if is_any_weekday else _weekdays(cron.weekdays)
    return days if is_any_weekday else f"{days} if that is a {_listed([_WEEKDAYS[n] for n in cron.weekdays], 'or')}"


def _weekdays(numbers: Sequence[int]) -> str:
    if tuple(numbers) == _WORKING_DAYS:
        return "Monday to Friday"
    if len(numbers) == 1:
        return f"every {_WEEKDAYS[numbers[0]]}"
    from_monday = sorted(numbers, key=lambda number: (number - 1) % 7)
    return f"on {_listed([f'{_WEEKDAYS[number]}s' for number in from_monday])}"


def _listed(items: Sequence[str], last: str = "and") -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}"
