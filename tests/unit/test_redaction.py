"""What a text from outside may say when it is stored, logged or shown."""

from __future__ import annotations

import json
import os
import re
from typing import Any
from urllib.parse import quote

import pytest

from rmq_store.utils import redaction
from rmq_store.utils.redaction import (
    NAME_BYTES,
    PART,
    TEXT_BYTES,
    cleaned,
    cleaned_value,
    escaped_json,
    name_in_sentence,
    plain_markdown,
    reason_in_sentence,
    secret_values,
    without_secrets,
)

ENV = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtn/FEMI+K7",
    "API_TOKEN": "tok'en\"with\\quotes\n",
    "db_password": "hunter2hunter2",
    "AIRFLOW_CONN_SHOP": "mysql:u:conn-secret",
    "MONKEY": "tiny5",
    "HOME": "/home/somebody",
    "PWD": "/home/somebody/shop",
}
HIDDEN = ("AWS_SECRET_ACCESS_KEY", "API_TOKEN", "db_password", "AIRFLOW_CONN_SHOP")


@pytest.mark.parametrize("quoting", [str, repr, json.dumps, lambda text: quote(text, safe="")])
def test_the_value_of_a_secret_variable_is_hidden_however_it_is_quoted(quoting: object) -> None:
    assert callable(quoting)
    for name in HIDDEN:
        said = cleaned(f"{name}: <{quoting(ENV[name])}>", secret_values(ENV))
        assert said.replace('"', "").replace("'", "") == f"{name}: <***>"


def test_an_environment_as_a_whole_says_no_secret_and_all_of_the_rest() -> None:
    environ: Any = os._Environ
    said = cleaned(str(environ(ENV, str.encode, str, str.encode, str)), secret_values(ENV))
    assert said.count("***") == len(HIDDEN)
    assert "/home/somebody/shop" in said
    assert "tiny5" in said


def test_a_secret_that_is_part_of_another_one_leaves_nothing_of_it() -> None:
    assert cleaned("abcdef-ghijkl", secret_values({"A_KEY": "abcdef", "B_KEY": "abcdef-ghijkl"})) == "***"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('URL: "http://user:SECRET@host:9000/bucket"', 'URL: "http://***@host:9000/bucket"'),
        ("s3://KEY:SE/CR/ET@bucket/x", "s3://***@bucket/x"),
        ("mysql://u:p@ss@db/shop and amqp://:x@q", "mysql://***@db/shop and amqp://***@q"),
        ("http://a:1/x://u:p/w@h", "http://a:1/x://***@h"),
        ("http://h:x/y s3://k:p/w@b://c:d@e", "http://h:x/y s3://***@b://***@e"),
        ("http://u:" + "p" * 2000 + "@h", "http://***@h"),
        ("https://ghp_token@git.example/x", "https://***@git.example/x"),
        ("http://host:9000/bucket/a@b", "http://host:9000/bucket/a@b"),
        ("http://host:9000/a, mail to a@b", "http://host:9000/a, mail to a@b"),
        ("group@client has no offset", "group@client has no offset"),
    ],
)
def test_credentials_in_an_address_are_hidden(text: str, shown: str) -> None:
    assert cleaned(text) == shown


def test_control_characters_are_written_and_lines_stay_lines() -> None:
    said = cleaned("a\x1b]0;title\x07b\x9bc\x7f\r\x00\u202ed\u2028\te\n\u3000\u00a0é")
    assert said == "a\\x1b]0;title\\x07b\\x9bc\\x7f\\r\\x00\\u202ed\\u2028\te\n\u3000\u00a0é"


def test_every_text_of_an_answer_is_cleaned() -> None:
    answer = {"notes": ["s3://k:pw@b", 7], "hunter2hunter2": {"x": ("\x1b", None, "a\u200bb")}}
    assert cleaned_value(answer, ("hunter2hunter2",)) == {
        "notes": ["s3://***@b", 7],
        "***": {"x": ["\\x1b", None, "a\\u200bb"]},
    }


def test_a_json_document_keeps_its_values_and_controls_no_terminal() -> None:
    value = "a\x9b\u202e\U000e0041é\x7f"
    text = escaped_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert text == '"a\\u009b\\u202e\\udb40\\udc41é\\u007f"'


def test_a_text_is_cut_at_whole_characters_of_utf_8() -> None:
    assert cleaned("é" * 5000) == "é" * (TEXT_BYTES // 2)
    assert len(cleaned("a" + "é" * 5000).encode()) == TEXT_BYTES - 1
    assert cleaned("\udc80") == "?"
    assert cleaned("C" * 100_000, (), NAME_BYTES) == "C" * 256
    assert len(cleaned("\0" * 5000)) == TEXT_BYTES


class Own(str):
    """A text with methods of its own."""

    def __getitem__(self, at: object) -> str:
        raise AssertionError("only Python's own str is asked")

    encode = replace = __str__ = __getitem__  # type: ignore[assignment]


def test_a_text_is_a_plain_one_whatever_its_class_says() -> None:
    assert type(cleaned(Own("hidden"))) is str
    assert cleaned(Own("a" * 9999), ("secret",)) == "a" * TEXT_BYTES


class Looked:
    """In place of a pattern: how long the texts were that it was given."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern
        self.most = 0

    def sub(self, by: Any, text: str) -> str:
        self.most = max(self.most, len(text))
        return self.pattern.sub(by, text)


def test_only_the_beginning_of_a_long_text_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Looked(redaction._IN_URL)
    monkeypatch.setattr(redaction, "_IN_URL", looked)
    assert cleaned("://" * 1_000_000, ("s" * 5000,)).startswith("://")
    assert TEXT_BYTES <= looked.most <= TEXT_BYTES + 5000


@pytest.mark.parametrize(
    "unit", ["://", "://a:", "://a:b/", "://a@", "://1:2/", "://a:b/@", "@", ":", "://a:" + "b" * 300]
)
def test_the_search_for_addresses_is_linear(unit: str) -> None:
    """Of a text as long as the longest log that is cleaned. A square of it would run into the time limit of the tests."""
    text = unit * ((1 << 20) // len(unit))
    assert cleaned(text, (), 1 << 20)
    assert "pw" not in cleaned(text + " ftp://u:pw@h", (), 1 << 21)


@pytest.mark.parametrize("before", range(TEXT_BYTES - 60, TEXT_BYTES + 60, 7))
def test_neither_a_secret_nor_an_address_at_any_cut_shows_its_head(before: int) -> None:
    secrets = ("hunter2-" * 6, "longer-" * 8)
    for text in ("." * before + secrets[0], secrets[1] * 60 + "." * before + secrets[0]):
        assert "hunter" not in cleaned(text, secrets)
    assert "tok" not in cleaned("." * before + "://u:tok" + "e" * 900 + "@h", secrets)
    assert "hunter" not in cleaned(secrets[1] * 200 + secrets[0], secrets)
    for many in range(60, 120):
        assert "hunt" not in cleaned(secrets[1] * many + "." * (before % 60) + secrets[0] * 3, secrets)


def test_a_secret_at_the_cut_leaves_no_part_of_it() -> None:
    secrets = secret_values({"A_KEY": "abcdefgh"})
    assert "abc" not in cleaned("." * (TEXT_BYTES - 5) + "abcdefgh", secrets)
    assert "abc" not in cleaned("." * (TEXT_BYTES - 12) + "://u:abcdefgh@h")


_ADDRESS = r"(?:https?|ftp)://[-.\w]+|www\.[-.\w]+|[-.\w+]+@[-\w]+(?:\.[-\w]+)+"
"""What mdast-util-gfm-autolink-literal looks for in the text of Markdown once it is parsed, and ftp, which GitHub has too."""


@pytest.mark.parametrize(
    "text",
    [
        "![x](http://127.0.0.1:1/x) ~~gone~~ {{ 7*7 }} <b>bold</b> [c](javascript:alert(1))",
        "<img src=http://a/b> <http://a/b> &lt;b&gt; &amp; a < b && c",
        "**b** *i* __b__ _i_ ___x___ a_b _c a_ _ snake_case__name 2*3*4",
        "`code` ``x` \\`y\\` \\\\ \\[z](u)",
        "# Head", "> said", "- one", "+ one", "* one", "1. one", "12) one", "---", "===", "~~~", "```", "| a | b |", "[a]: http://b",
        "$x$ :smile: 0 -> 200, 12.5 (3 bytes)!", "é_à_ ü*ü*", "",
        "http://a.b HTTPS://a.b/c?d=e ftp://a.b www.evil.example WWW.a.b x@y.example mailto:x@y.z (http://a.b) a@b@c.d",
        "://://www.://x@www.y `http://a`b@c.d` \\://a", "see https://a.b/_c_*d*[e](f)",
    ],
)  # fmt: skip
def test_a_text_as_markdown_is_shown_as_it_is(text: str) -> None:
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").enable(["strikethrough", "table"]).parse(plain_markdown(text))
    assert [token.type for token in tokens] == (["paragraph_open", "inline", "paragraph_close"] if text else [])
    inline = [part for token in tokens for part in token.children or ()]
    assert {part.type for part in inline} <= {"text", "text_special", "code_inline"}
    assert "".join(part.content for part in inline) == text
    shown = "".join("\0" if part.type == "code_inline" else part.content for part in inline)
    assert re.findall(_ADDRESS, shown, re.IGNORECASE) == [], "Airflow's pages make links of them"


def test_a_text_as_markdown_is_one_line_and_a_plain_one_has_no_escapes() -> None:
    assert plain_markdown("a\n\nRocketMQ b: c\t# d") == "a\\\\n\\\\nRocketMQ b: c\\\\t# d"
    plain = (
        "RocketMQ move 0: gb in a: 900 messages (12 bytes); offsets 0 -> 225 in rmq_undo/manual__2026-11-26T00:00+00:00"
    )
    assert plain_markdown(plain) == plain


def test_a_users_text_is_one_line_of_limited_length_in_a_sentence() -> None:
    assert reason_in_sentence("bad deploy") == name_in_sentence("bad deploy") == "bad deploy"
    assert reason_in_sentence("a\n\nb") == name_in_sentence("a\n\nb") == "a\\n\\nb"
    assert reason_in_sentence("word " * 1000) == "word " * (PART // 5 - 1) + "word…"
    assert reason_in_sentence("one two" + "K" * 3000) == "one…", "the beginning of a secret is not known as one"
    assert name_in_sentence("K" * 3000) == "K" * (PART - 1) + "…"


def test_what_is_printed_as_nothing_or_over_other_lines_is_shown_as_an_escape() -> None:
    fillers = "\u115f\u1160\u3164\uffa0"
    assert name_in_sentence(f"a{fillers}b") == r"a\u115f\u1160\u3164\uffa0b"
    assert name_in_sentence("e\u0301a Việt ที่ ❤️") == "e\u0301a Việt ที่ ❤️"
    assert name_in_sentence("z" + "\u0301" * 6 + "a") == "z" + "\u0301" * 4 + r"\u0301" * 2 + "a"


def test_a_users_text_is_recorded_whole_and_without_secrets() -> None:
    text = f"http://me:pw@host/a\n{ENV['db_password']} " + "K" * (2 * TEXT_BYTES)
    assert without_secrets(text, secret_values(ENV)) == "http://***@host/a\n*** " + "K" * (2 * TEXT_BYTES)
