"""Sign staff in to the pages and the admin, with limits of attempts.

An attempt is stored before its password is checked, so that simultaneous attempts count each other, in every process.
"""

from __future__ import annotations

import hashlib
import ipaddress
from datetime import timedelta
from typing import Any

from django.contrib.admin.forms import AdminAuthenticationForm
from django.core.exceptions import ValidationError
from django.utils import timezone

from models_registry.models import SignInAttempt

WINDOW_S = 300
MAX_BY_NAME_AND_ADDRESS = 10
MAX_BY_ADDRESS = 30
"""More than of one name: behind a proxy that doesn't forward addresses, everybody has the same one."""
MAX_BY_NAME = 100
"""From all addresses together. So many that one address can't keep the owner of a name out from another one."""


def is_staff(user: Any) -> bool:
    """Whether an account may enter the pages."""
    return bool(user.is_active and getattr(user, "is_staff", False))


class SignInForm(AdminAuthenticationForm):
    """The form of both sign-in pages; refuses attempts over the limit without a look at the password."""

    def clean(self) -> dict[str, Any]:
        """Count the attempt, then check name and password; a success forgets this name's attempts from this address."""
        name, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if name is None or not password:
            return super().clean()
        address = "" if self.request is None else self.request.META.get("REMOTE_ADDR") or ""
        attempt = attempt_start(name=name, address=address)
        cleaned: dict[str, Any] = super().clean()
        SignInAttempt.objects.filter(name=attempt.name, address=attempt.address).delete()
        return cleaned


def attempt_start(*, name: str, address: str) -> SignInAttempt:
    """Store an attempt to sign in.

    Raises:
        ValidationError: There were too many for this name or from this address; says how long to wait.
    """
    now = timezone.now()
    begin = now - timedelta(seconds=WINDOW_S)
    SignInAttempt.objects.filter(created_at__lt=begin).delete()
    # A digest: people type passwords into the field of the name.
    digest = hashlib.sha256(name.casefold().encode(errors="replace")).hexdigest()
    attempt = SignInAttempt.objects.create(name=digest, address=_counted(address), created_at=now)
    by_name = SignInAttempt.objects.filter(name=attempt.name)
    for limit, found in (
        (MAX_BY_NAME_AND_ADDRESS, by_name.filter(address=attempt.address)),
        (MAX_BY_NAME, by_name),
        (MAX_BY_ADDRESS, SignInAttempt.objects.filter(address=attempt.address)),
    ):
        if found.filter(pk__lte=attempt.pk).count() > limit:
            attempt.delete()  # the wait ends although somebody goes on trying
            oldest = found.order_by("created_at").values_list("created_at", flat=True).first() or now
            wait_s = max(1, WINDOW_S - int((now - oldest).total_seconds()))
            raise ValidationError(
                f"Too many attempts to sign in; at most {limit} in {WINDOW_S // 60} minutes. Try again in {wait_s} s.",
                code="throttled",
            )
    return attempt


def _counted(address: str) -> str:
    """Return what counts as one address: of IPv6 the network of 64 bits, as one subscriber has all of its addresses."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # none, or the name of a socket
        return address[:64]
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ipaddress.IPv6Network((int(found), 64), strict=False))
