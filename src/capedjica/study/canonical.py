"""The bytes that a study's hash is of: the words of ``study.toml``, whatever Python calls them.

A value that is its key's default is left out, so that a key that comes later, with a default that changes
nothing, leaves every earlier hash as it is; defaults of a schema are therefore never changed. ``kind`` always
counts. Of numbers only the value counts: 2 and 2.0 are the same where a number need not be whole.
"""

from __future__ import annotations

from typing import Any

import msgspec


def canonical(content: msgspec.Struct) -> bytes:
    """Return a struct as MessagePack, keys sorted, without what is as by default."""
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
