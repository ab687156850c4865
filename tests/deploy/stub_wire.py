"""Helm keeps its releases in Secrets, which newer clients send in Kubernetes' protobuf form.

Only what such a Secret or ConfigMap holds is read; everything else comes as JSON.
"""

from __future__ import annotations

import base64
from typing import Any

_MAGIC_BYTES = 4
Fields = list[tuple[int, Any]]


def object_from_protobuf(body: bytes) -> dict[str, Any]:
    """The object in an envelope of Kubernetes' protobuf."""
    envelope = dict(_fields(body[_MAGIC_BYTES:]))
    kind = dict(_fields(envelope[1]))
    fields = _fields(envelope[2])
    one: dict[str, Any] = {"apiVersion": kind[1].decode(), "kind": kind[2].decode()}
    is_secret = one["kind"] == "Secret"
    one["metadata"] = _metadata(_fields(dict(fields)[1]))
    entries = [dict(_fields(value)) for number, value in fields if number == 2]
    one["data"] = {
        entry[1].decode(): base64.b64encode(entry[2]).decode() if is_secret else entry[2].decode()
        for entry in entries
    }
    if is_secret:
        one["type"] = dict(fields)[3].decode()
    return one


def _metadata(fields: Fields) -> dict[str, Any]:
    known = dict(fields)
    labels = [dict(_fields(value)) for number, value in fields if number == 11]
    return {
        "name": known[1].decode(),
        "labels": {label[1].decode(): label.get(2, b"").decode() for label in labels},
    }


def _fields(data: bytes) -> Fields:
    """Number and value of each field: an integer, or bytes."""
    position = 0
    found: Fields = []

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while position < len(data):
        tag = number()
        if tag & 7 == 0:
            found.append((tag >> 3, number()))
        else:
            length = number()
            found.append((tag >> 3, data[position : position + length]))
            position += length
    return found
