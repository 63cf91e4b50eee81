"""Tenants by the numbers of their rows."""

from inference.values.tenants import tenants_by_number


def test_tenants_of_a_kind_are_found_and_no_row_has_an_odd_number():
    tenants = ["key:7", "user:7", "key:8", "local", "", "key:x", "key:\xb2", "key:" + "9" * 19]
    assert tenants_by_number("key", tenants) == {7: "key:7", 8: "key:8"}
    assert tenants_by_number("user", tenants) == {7: "user:7"}
