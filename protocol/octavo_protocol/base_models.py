"""Whether an adapter was trained on the served model, by the names of both. Pure.

An adapter names its base model, and nothing proves the name: a copy by another owner, a quantized copy and a fine-tune
of the model have other names, and adapters of one are often used on another. So names alone are no reason to refuse an
adapter whose matrices fit, and only names that have nothing in common are worth a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}\Z")
# Ends of names of copies in another format.
_FORMAT = re.compile(
    r"[-_.](gguf|awq|gptq|bnb|nf4|fp8|fp4|int4|int8|w4a16|w8a8|[48]bit|unsloth|quantized|dynamic|hf)\b"
)


def is_hub_name(text: str) -> bool:
    """True for OWNER/NAME, and false for paths, which say nothing on another machine."""
    return _HUB_NAME.match(text) is not None


def is_other_base(base: str, served: Iterable[str]) -> bool:
    """True if both have names of a hub, and the adapter's `base` has none of those of the `served` model.

    Names of one model contain each other, without owner, letter case and the format of the weights.
    """
    known = [_plain(name) for name in served if is_hub_name(name)]
    wanted = _plain(base)
    return bool(known) and is_hub_name(base) and not any(wanted in name or name in wanted for name in known)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]", "", _FORMAT.sub("", name.rpartition("/")[2].lower()))
