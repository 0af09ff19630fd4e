"""Texts from outside before they are stored, logged or shown: secrets are removed, control characters escaped, and the
length of an error is limited. A text may contain anything: an endpoint with its password, a listener's environment, or
the sequence that sets a terminal's title."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from unicodedata import category
from urllib.parse import quote

TEXT_BYTES: Final = 4096
ANY_BYTES: Final = 1 << 40
"""For what a user asked to see, which is not cut."""
NAME_BYTES: Final = 256
PART: Final = 120
"""So many characters of a user's text are in a sentence about more than that."""
HIDDEN: Final = "***"

_SECRET_NAME: Final = re.compile(r"KEY|SECRET|TOKEN|PASSW|PASSPHRASE|CREDENTIAL|AIRFLOW_CONN_", re.IGNORECASE)
_LEAST_SECRET = 6
"""A shorter value is no real secret, and is part of many words."""

# No group of these expressions has "++": Python 3.11.2 then gives back a part of what the group matched.
_IN_URL: Final = re.compile(
    r"""://(?:(?:[^\s/@"'<>]*+@)+|[^\s/@:"'<>]*+:(?!\d{1,5}/)[^\s@"'<>]*+@?)"""
)  # second form: a secret with a slash, but no port with a path. Without @ it is skipped at once: no later :// has one
_LONGEST_IN_URL = 1280
"""The most characters that a URL may have before ``@`` where the text is cut."""

_CONTROL: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
"""Control characters, and those that change the direction of a text or are not seen."""


_PRINTED_AS_NOTHING: Final = frozenset("\u115f\u1160\u3164\uffa0")
"""Characters that Unicode calls printable: the fillers of Hangul."""
_MOST_MARKS: Final = 4
"""More of them on one character are in no language."""

_MARKDOWN: Final = re.compile(
    r"(?P<link>(?:://|(?<=www)\.|(?<=[\w.+-])@(?=[\w-]++\.))+)"  # GitHub's Markdown makes links of addresses alone
    r"|[\\`*\[<&~]"
    r"|(?<![^\W_])(?<!_)_++|_++(?![^\W_])"  # in a name as a_b it has none
    r"|^[-+=#>]|^[0-9]++[.)]",  # a list, a heading, a quotation
    re.IGNORECASE,
)
"""What has a meaning in a line of Markdown."""


def secret_values(env: Mapping[str, str]) -> tuple[str, ...]:
    """The values of variables with secret-looking names, in every form in which a text may quote them; longest
    first."""
    values = [value for name, value in env.items() if _SECRET_NAME.search(name) and len(value) >= _LEAST_SECRET]
    return tuple(sorted({form for value in values for form in _forms(value)}, key=lambda form: (-len(form), form)))


def _forms(value: str) -> Iterator[str]:
    yield value
    yield repr(value)[1:-1]
    yield json.dumps(value)[1:-1]
    yield quote(value, safe="", errors="replace")


def cleaned(text: str, secrets: Sequence[str] = (), most_bytes: int = TEXT_BYTES) -> str:
    """The text as valid UTF-8 of at most ``most_bytes``. ``***`` replaces each of the secrets (``secret_values``) and
    what a URL has before ``@``. Control characters other than tab and line feed are written as Python escapes them.

    Linear time: it reads no more of the text than may be shown, plus one secret and one address behind that."""
    longest = max(map(len, secrets), default=0)
    most = most_bytes + longest + _LONGEST_IN_URL
    is_cut = str.__len__(text) > most
    text = str.__getitem__(text, slice(most))  # a plain one, whatever its class
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    if is_cut:  # the beginning of a secret may remain
        text = text[: len(text) - longest]
    text = _IN_URL.sub(_without_credentials, text)
    text = (text[:-_LONGEST_IN_URL] if is_cut else text)[:most_bytes]
    text = _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)
    return text.encode("utf-8", "replace")[:most_bytes].decode("utf-8", "ignore")


def without_secrets(text: str, secrets: Sequence[str]) -> str:
    """A user's text as it is recorded: as ``cleaned``, but whole, and with its control characters."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return _IN_URL.sub(_without_credentials, text)


def one_line(text: str) -> str:
    """The text with line ends, tabs and all else that cannot be printed, or is printed as nothing, as Python escapes them. Of
    marks that are put on one character, only the first ones stay: many would cover the lines around it."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_printed(text))


def _printed(text: str) -> Iterator[str]:
    marks = 0
    for char in text:
        marks = marks + 1 if category(char).startswith("M") else 0
        if char.isprintable() and char not in _PRINTED_AS_NOTHING and marks <= _MOST_MARKS:
            yield char
        else:
            yield char.encode("unicode_escape").decode() if not char.isascii() else repr(char)[1:-1]


def shortened(text: str, most: int) -> str:
    """The text in at most ``most`` characters: the end of a longer one is an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def name_in_sentence(name: str) -> str:
    """A user's name or an id as a part of a sentence: in one line, and no longer than leaves room for the rest."""
    return shortened(one_line(name), PART)


def reason_in_sentence(reason: str) -> str:
    """What a user gave as a reason, as ``name_in_sentence``. It is cut between two words: the beginning of a secret would not
    be known as one."""
    line = one_line(reason)
    if len(line) <= PART:
        return line
    return f"{line[:PART].rpartition(' ')[0]}…"


def plain_markdown(text: str) -> str:
    """The text in one line of Markdown that shows it as it is: no image, heading, HTML, link or the like. What would make an
    address a link, such as ``://``, is shown as code: an escape would be gone before Airflow's pages look for addresses."""
    return _MARKDOWN.sub(_markdown_escape, one_line(text).lstrip())


def _markdown_escape(match: re.Match[str]) -> str:
    if match["link"]:
        return f"`{match[0]}`"
    return "".join(char if char.isdecimal() else f"\\{char}" for char in match[0])


def cleaned_value(value: Any, secrets: Sequence[str], most_bytes: int = ANY_BYTES) -> Any:
    """``cleaned`` for every text in a JSON value, also the names of an object. A tuple becomes a list."""
    match value:
        case str():
            return cleaned(value, secrets, most_bytes)
        case Mapping():
            return {
                cleaned_value(name, secrets, most_bytes): cleaned_value(item, secrets, most_bytes)
                for name, item in value.items()
            }
        case list() | tuple():
            return [cleaned_value(item, secrets, most_bytes) for item in value]
        case _:
            return value


def escaped_json(text: str) -> str:
    """A JSON document with the control characters that JSON allows in strings, such as those of a terminal's C1 set, as
    ``\\u`` escapes: for whoever parses it, it is the same."""
    return _CONTROL.sub(_json_escape, text)


def _json_escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def _without_credentials(match: re.Match[str]) -> str:
    return f"://{HIDDEN}@" if match[0].endswith("@") else match[0]
