"""Energy that devices have used, by day and model, and what a kilowatt-hour costs."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models


class EnergyDay(models.Model):
    """What one device used on one day (UTC) while one model had work; the model "" stands for the rest of the day.

    The sum of a day's rows is all that was counted. Grows each minute, and is kept.
    """

    day = models.DateField()
    device = models.CharField(max_length=128, help_text="The counted device: its host, and the counter's name.")
    source = models.CharField(max_length=8, help_text="rapl (a processor) or nvml (an NVIDIA device).")
    model = models.CharField(max_length=128, blank=True, default="")
    joules = models.FloatField(default=0)

    class Meta:
        ordering: ClassVar[list[str]] = ["-day", "device", "model"]
        verbose_name = "daily energy"
        verbose_name_plural = "daily energy"
        constraints: ClassVar[list[Any]] = [
            models.UniqueConstraint(fields=["day", "device", "source", "model"], name="energy_day_unique")
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.device} {self.model or 'no model'}"


class EnergyPrice(models.Model):
    """What operators set a kilowatt-hour to cost; the one row has the number 1, and without it nothing has a price."""

    per_kwh = models.FloatField(null=True, blank=True, help_text="Empty: no price.")
    currency = models.CharField(max_length=8, blank=True, default="", help_text="As it is written behind amounts.")
    author_name = models.CharField(max_length=150, blank=True, default="")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name = "energy price"

    def __str__(self) -> str:
        return "no price" if self.per_kwh is None else f"{self.per_kwh:g} {self.currency} per kWh"
