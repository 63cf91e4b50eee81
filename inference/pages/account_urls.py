"""Route URLs of the pages of accounts, below ``/settings/accounts/``."""

from __future__ import annotations

from django.urls import path

from inference.pages import accounts

urlpatterns = [
    path("", accounts.AccountsPage.as_view(), name="accounts"),
    path("new/", accounts.AccountCreate.as_view(), name="account-create"),
    path("<int:account_id>/", accounts.AccountPage.as_view(), name="account"),
    path("<int:account_id>/role/", accounts.AccountRole.as_view(), name="account-role"),
    path("<int:account_id>/password/", accounts.AccountPassword.as_view(), name="account-password"),
    path("<int:account_id>/sign-in/", accounts.AccountSignIn.as_view(), name="account-sign-in"),
    path("<int:account_id>/delete/", accounts.AccountDelete.as_view(), name="account-delete"),
]
