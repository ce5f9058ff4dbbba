"""docs/requests.md lists the header; whatever the cores put into a message has its field there."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import van.message
from kv.requests import Answer, Constituent, Failure, Kind, Request, Signature

PAGE = (Path(__file__).parents[3] / "docs" / "requests.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \| `(\w+)` \| (.*?) \| (.*) \|$", PAGE, flags=re.MULTILINE)
HEADER = {name: (kind, meaning) for _, name, kind, meaning in ROWS}

# fields of the cores' messages that have another name or place on the wire
ELSEWHERE = {
    "signature": {"sender", "incarnation", "app", "customer", "timestamp"},
    "request": {"recipient", "recipient_incarnation", "app", "customer", "timestamp"},
    "sender_incarnation": {"incarnation"},
    "push": {"flags"},
    "pull": {"flags"},
    "everywhere": {"flags"},
    "payload": {"frames", "body"},
}


def test_fields_are_numbered_from_0():
    assert [int(number) for number, *_ in ROWS] == list(range(27))


def test_every_field_of_a_message_is_in_the_header():
    for message in (Request, Answer):
        for field in fields(message):
            assert ELSEWHERE.get(field.name, {field.name}) <= set(HEADER), field.name


def test_kinds_have_their_numbers_on_the_page():
    for kind in Kind:
        assert f"{kind.value} {kind.name}" in HEADER["kind"][1]


def test_lists_on_the_wire_have_the_parts_that_the_cores_know():
    signature = ", ".join(Signature._fields)
    rest = ", ".join(Constituent._fields[1:])
    assert f"[{signature}, {rest}]" in HEADER["constituents"][0]
    assert f"[{', '.join(Failure._fields)}]" in HEADER["error"][0]


def test_kinds_are_those_of_the_van():
    on_the_wire = {kind.name: kind.value for kind in van.message.Kind if kind.value}

    assert {kind.name: kind.value for kind in Kind} == on_the_wire
