"""The services of docker-compose.yaml, to start them without containers: on loopback, in a folder for the image."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

_VARIABLE = re.compile(r"\$\{(\w+)(?:(:?-|:\?)([^}]*))?\}")


@dataclass(frozen=True, slots=True)
class Service:
    """One service of the file."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    volumes: tuple[str, ...]
    """The paths where named volumes are mounted."""
    folders: Mapping[str, str]
    """The folders of the host that are mounted, all read-only: path in the container -> folder."""
    healthcheck: tuple[str, ...]
    """The words of its command; empty if the service has none."""
    after: frozenset[str]
    """The services that have to be healthy before it starts."""
    restarts: bool
    """Whether it is started again when it ends."""
    stop_grace_s: float
    """Seconds between the request to end and the kill."""


def services_of(file: Path, given: Mapping[str, str]) -> dict[str, Service]:
    """The services that run our image. ``given``: the variables of ``.env``. Raises KeyError for a missing one."""
    content = yaml.safe_load(_interpolated(file.read_text(), given))
    built = {name: service for name, service in content["services"].items() if service.get("build")}
    return {name: _service(name, service, content["volumes"]) for name, service in built.items()}


def _service(name: str, words: Mapping[str, Any], volumes: Mapping[str, Any]) -> Service:
    mounts = [mount.split(":") for mount in words.get("volumes", ())]
    folders = {mount[1]: mount[0] for mount in mounts if mount[0].startswith((".", "/"))}
    assert all(mount[2:] == ["ro"] for mount in mounts if mount[1] in folders), f"{name}: a folder that it may change"
    named = {mount[1]: mount[0] for mount in mounts if mount[1] not in folders}
    assert set(named.values()) <= set(volumes), f"{name}: a volume that is not declared"
    kind, *check = words.get("healthcheck", {}).get("test", ("CMD",))
    assert kind == "CMD", f"{name}: a healthcheck in the form CMD needs no shell"
    needed: Mapping[str, Mapping[str, str]] = words.get("depends_on", {})
    environment = {key: str(value) for key, value in words.get("environment", {}).items()}
    grace = str(words.get("stop_grace_period", "10s"))
    assert grace.endswith("s"), f"{name}: give stop_grace_period in seconds"
    return Service(
        name,
        tuple(words["command"]),
        environment,
        tuple(named),
        folders,
        tuple(check),
        frozenset(other for other, how in needed.items() if how["condition"] == "service_healthy"),
        restarts=words.get("restart") == "unless-stopped",
        stop_grace_s=float(grace[:-1]),
    )


def _interpolated(text: str, given: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name, kind, default = match.groups()
        if kind == ":?" and not given.get(name):
            raise KeyError(f"{name}: {default}")
        if kind == "-" and name in given:
            return given[name]
        return given.get(name) or default or ""

    return _VARIABLE.sub(value, text)


@dataclass(frozen=True, slots=True)
class Loopback:
    """Translates addresses of the services' network to those on this host."""

    texts: Mapping[str, str]
    """From address or port in the network to address or port here."""

    def translate(self, text: str) -> str:
        pattern = "|".join(rf"(?<!\w){re.escape(address)}(?!\d)" for address in self.texts)
        return re.sub(pattern, lambda match: self.texts[match[0]], text)

    def translate_all(self, words: Sequence[str]) -> list[str]:
        return [self.translate(word) for word in words]
