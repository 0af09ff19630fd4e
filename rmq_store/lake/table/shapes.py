"""What a value of JSON must look like."""

from __future__ import annotations

from types import UnionType
from typing import Any

Shape = type | UnionType | list["Shape"] | tuple["Shape", ...] | dict[str, "Shape"]
"""A type; a list of any length (of its only item); a list of these items; an object with these members, and maybe others."""


def has_shape(value: Any, shape: Shape) -> bool:
    """Whether the value has the shape. ``true`` is no number."""
    match shape:
        case list():
            return isinstance(value, list) and all(has_shape(item, shape[0]) for item in value)
        case tuple():
            same_length = isinstance(value, list) and len(value) == len(shape)
            return same_length and all(has_shape(item, of) for item, of in zip(value, shape, strict=True))
        case dict():
            has_all = isinstance(value, dict) and shape.keys() <= value.keys()
            return has_all and all(has_shape(value[name], of) for name, of in shape.items())
        case _:
            return isinstance(value, shape) and (not isinstance(value, bool) or shape is bool)
