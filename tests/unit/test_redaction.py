"""What a text from outside may say when it is stored, logged or shown."""

from __future__ import annotations

import json
import os
from urllib.parse import quote

import pytest

from rmq_store.redaction import NAME_BYTES, TEXT_BYTES, cleaned, secret_values

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
    said = cleaned(str(os._Environ(ENV, str.encode, str, str.encode, str)), secret_values(ENV))  # type: ignore[attr-defined]
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


def test_a_text_is_cut_at_whole_characters_of_utf_8() -> None:
    assert cleaned("é" * 5000) == "é" * (TEXT_BYTES // 2)
    assert len(cleaned("a" + "é" * 5000).encode()) == TEXT_BYTES - 1
    assert cleaned("\udc80") == "?"
    assert cleaned("C" * 100_000, (), NAME_BYTES) == "C" * 256
    assert len(cleaned("\0" * 5000)) == TEXT_BYTES


def test_a_secret_at_the_cut_leaves_no_part_of_it() -> None:
    secrets = secret_values({"A_KEY": "abcdefgh"})
    assert "abc" not in cleaned("." * (TEXT_BYTES - 5) + "abcdefgh", secrets)
    assert "abc" not in cleaned("." * (TEXT_BYTES - 12) + "://u:abcdefgh@h")
