"""Cron expressions in words."""

from __future__ import annotations

import pytest

from inference.schedules.cron import cron_parse
from inference.schedules.words import cron_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 2 * * *", "every day at 02:00"),
        ("0 8,20 * * 0,6", "on Saturdays and Sundays at 08:00 and 20:00"),
        ("*/15 * * * *", "every 15 minutes"),
        ("*/15 8-17 * * mon-fri", "Monday to Friday every 15 minutes from 08:00 to 17:45"),
        ("5 * * * *", "every hour at minute 5"),
        ("0 * * * *", "every hour"),
        ("0 */2 * * *", "every 2 hours from 00:00 to 22:00"),
        ("30 6 1,15 * *", "on days 1 and 15 of the month at 06:30"),
        ("0 8 13 * 5", "on day 13 of the month and every Friday at 08:00"),
        ("0 8 */14 * 1", "on days 1, 15 and 29 of the month if that is a Monday at 08:00"),
        ("0 0 29 2 *", "on day 29 of the month at 00:00 in February"),
        ("10,20,40 * * 1,7 *", "every day at minutes 10, 20 and 40 of every hour in January and July"),
        ("10,20,40 8-12 * * *", "every day at minutes 10, 20 and 40 of every hour from 8 to 12 o'clock"),
        ("0 22-4 * * *", "every day at minute 0 of the hours 0, 1, 2, 3, 4, 22 and 23"),
    ],
)
def test_words(text, words):
    assert cron_words(cron_parse(text, min_interval_min=0), "UTC") == f"{words} UTC"
