"""The directive ``struct``: the fields of a file or message, written from the type that reads it.

.. code-block:: rst

   .. struct:: capedjica.study.study_file.PrivacyTable capedjica.study.study_file.SiteTable

writes a section for each class (with ``:own:`` without inherited fields): the first paragraph of its
docstring, and a table of its fields with type, limits, default and meaning. The types and limits are those
that the parser enforces. Meanings come from the section ``Attributes`` of the docstring, or from the comments
that are written into the file itself.
"""

import inspect
import math
import pkgutil
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar

import msgspec
from docutils import nodes
from docutils.parsers.rst import directives
from msgspec.inspect import Field, Metadata, StructType, UnionType, type_info
from numpydoc.docscrape import ClassDoc
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_PLAIN = {
    "BoolType": "true or false",
    "BytesType": "bytes",
    "FloatType": "number",
    "IntType": "integer",
    "MemoryViewType": "bytes",
    "NoneType": "nothing",
    "StrType": "text",
    "AnyType": "anything",
}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_UNITS = {"BytesType": "bytes", "StrType": "characters"}


def section(name: str, level: int = 3, own: bool = False) -> str:
    """Return the section of a class, given its full name, in Markdown; ``own`` omits inherited fields."""
    struct = pkgutil.resolve_name(name)
    text = inspect.getdoc(struct) or ""
    summary = text.split("\n\n")[0].replace("``", "`")
    inherited = struct.__mro__[1].__struct_fields__ if own else ()
    fields = [one for one in type_info(struct).fields if one.name not in inherited]
    parts = [f"{'#' * level} {struct.__name__}", " ".join(summary.split()), _table(struct, fields)]
    return "\n\n".join(part for part in parts if part)


def _table(struct: Any, fields: list[Field]) -> str:
    """Return the table of the fields; without a column of meanings if none is known."""
    known = {name: text for name, text in meanings(struct).items() if name in {one.name for one in fields}}
    head = ["key", "type", "default", *(["meaning"] if known else [])]
    rows = [_row(field, known) for field in fields]
    if not rows:
        return "No fields of its own."
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(field: Field, known: Mapping[str, str]) -> list[str]:
    cells = [f"`{field.encode_name}`", words(field.type), _default(field)]
    return [*cells, known.get(field.name, "").replace("|", r"\|")] if known else cells


def meanings(struct: Any) -> dict[str, str]:
    """Return the meaning of each field that has one: comments of the file first, then the docstring."""
    found = {}
    bases = [
        base for base in struct.__mro__ if issubclass(base, msgspec.Struct) and base is not msgspec.Struct
    ]
    for base in reversed(bases):
        for parameter in ClassDoc(base, config={"show_class_members": False})["Attributes"]:
            text = _one_line(parameter.desc)
            found |= {name.strip(): text for name in parameter.name.split(",") if text}
        found |= base.__dict__.get("comments", {})
    return found


def _one_line(lines: list[str]) -> str:
    text = " ".join(" ".join(lines).replace("``", "`").split())
    return re.sub(r":\w+:(`[^`]+`)", r"\1", text)


def _default(field: Field) -> str:
    """Return the default of a field as it would be written."""
    if field.default_factory is not msgspec.NODEFAULT:
        return "empty"
    if field.default is msgspec.NODEFAULT:
        return "*required*"
    if isinstance(field.default, msgspec.Struct):
        return "its defaults"
    if field.default in (None, (), ""):
        return "none"
    return f"`{msgspec.json.encode(field.default).decode()}`"


def words(kind: Any) -> str:
    """Return a type with its limits in words."""
    name = type(kind).__name__
    if isinstance(kind, Metadata):
        return words(kind.type)
    if isinstance(kind, UnionType):
        return " or ".join(words(one) for one in kind.types if type(one).__name__ != "NoneType")
    if isinstance(kind, StructType):
        return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
    if name == "LiteralType":
        return ", ".join(f"`{msgspec.json.encode(one).decode()}`" for one in kind.values)
    if name == "TupleType":
        return f"[{', '.join(words(one) for one in kind.item_types)}]"
    if name in ("ListType", "VarTupleType"):
        return f"list{_bounds(kind, 'items')} of: {words(kind.item_type)}"
    if name == "DictType":
        return f"map from {words(kind.key_type)} to {words(kind.value_type)}"
    return f"{_PLAIN[name]}{_bounds(kind, _UNITS.get(name, ''))}"


def _bounds(kind: Any, unit: str) -> str:
    """Return the limits of a type in parentheses."""
    found = [_range(kind, "ge", "le", ""), _range(kind, "min_length", "max_length", unit)]
    found += [f"above {_number(kind.gt)}" if getattr(kind, "gt", None) is not None else ""]
    found += [f"below {_number(kind.lt)}" if getattr(kind, "lt", None) is not None else ""]
    found += [f"matching `{kind.pattern}`" if getattr(kind, "pattern", None) else ""]
    words = ", ".join(filter(None, found))
    return f" ({words})" if words else ""


def _range(kind: Any, low: str, high: str, unit: str) -> str:
    """Return a closed range, of values or of lengths."""
    least, most = getattr(kind, low, None), getattr(kind, high, None)
    if least is None and most is None:
        return ""
    if least is None or most is None:
        words = f"at least {_number(least)}" if most is None else f"at most {_number(most)}"
    else:
        words = _number(least) if least == most else f"{_number(least)} to {_number(most)}"
    return f"{words} {unit}".strip()


def _number(value: float) -> str:
    """Return a limit, with large and small ones as the powers that they are."""
    if value < 0:
        return f"-{_number(-value)}"
    for base in (2, 10):
        power = round(math.log(value, base)) if value else 0
        if abs(power) > 12 // math.log2(base) and value in (
            Fraction(base) ** power,
            Fraction(base) ** power - 1,
        ):
            return (
                f"{base}{str(power).translate(_RAISED)}{'' if value == Fraction(base) ** power else ' - 1'}"
            )
    return f"{value:g}"


class Struct(SphinxDirective):
    """Insert a section for each of the named classes."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {"own": directives.flag}

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        text = "\n\n".join(section(name, own="own" in self.options) for name in self.arguments[0].split())
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("struct", Struct)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
