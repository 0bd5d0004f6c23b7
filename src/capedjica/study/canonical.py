"""Canonical encoding of a study for its hash, by the keys of ``study.toml`` and not by Python names.

A value that equals its key's default is omitted. A key added later, with a default that changes nothing,
therefore leaves every earlier hash unchanged; the defaults of a schema must never change. ``kind`` is always
included. Numbers are encoded by value: 2 and 2.0 are equal where a number need not be an integer.
"""

from __future__ import annotations

from typing import Any

import msgspec


def canonical(content: msgspec.Struct) -> bytes:
    """Return a struct as MessagePack with sorted keys, omitting default values."""
    return msgspec.msgpack.encode(_given(content), order="deterministic")


def _given(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        return {
            field.encode_name: _given(own)
            for field in fields
            if (own := getattr(value, field.name)) != field.default or field.encode_name == "kind"
        }
    if isinstance(value, list | tuple):
        return [_given(item) for item in value]
    return value
