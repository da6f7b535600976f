"""The headers of a model that is split over several GGUF files (llama-gguf-split)."""

from __future__ import annotations

from octavo_inference.checkpoints.gguf_header import Header, Value, read_header
from octavo_inference.checkpoints.gguf_names import part_names
from octavo_inference.common.errors import ModelError

# What parts may have from the whole model. Those by llama-gguf-split have only `split.*`.
_SHARED = ("general.architecture", "general.name")


def read_other_parts(first: Header) -> list[Header]:
    """The headers of the parts after the first; none if the file is a whole model.

    Raises `ModelError` for parts that are missing or in another order, and for those that say that they are of another
    model.
    """
    count = _number(first, "split.count", 1)
    if count <= 1:
        return []
    names = part_names(first.path.name)
    if len(names) != count:
        raise ModelError(
            f"{first.path}: split.count is {count}, so the file must be named as one of that many parts: "
            f"NAME-00001-of-{count:05}.gguf"
        )
    parts = [first]
    for name in names[1:]:
        path = first.path.with_name(name)
        if not path.exists():
            raise ModelError(f"{first.path}: is part 1 of {count}, and {name} is missing beside it")
        parts.append(read_header(path))
    for number, part in enumerate(parts):
        claimed = _number(part, "split.no", -1) + 1, _number(part, "split.count", 0)
        if claimed != (number + 1, count):
            raise ModelError(
                f"{part.path}: split.no and split.count say part {claimed[0]} of {claimed[1]}, expected part "
                f"{number + 1} of {count}"
            )
        for key in _SHARED:
            if part.metadata.get(key, first.metadata.get(key)) != first.metadata.get(key):
                raise ModelError(f"{part.path}: {key} is {part.metadata[key]!r}, another than that of {first.path}")
    found = sum(len(part.entries) for part in parts)
    for part in parts:
        expected = _number(part, "split.tensors.count", found)
        if expected != found:
            raise ModelError(f"{part.path}: split.tensors.count is {expected}, the {count} parts have {found} tensors")
    return parts[1:]


def _number(header: Header, key: str, default: int) -> int:
    value: Value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"{header.path}: {key} is {value!r}, expected a number")
    return value
