"""Write ``sbom.cdx.json`` (CycloneDX) and ``NOTICE`` from the locks: ``make sbom``.

The packages with their sums come from requirements.txt, their licences from the metadata of those that are installed in
this environment. A package for another system or another Python, which is not installed, has no licence there. The jars
come from ``spark_jobs/jars.lock``; all of them are published under Apache-2.0.

The files have no time and no serial number, so equal locks make equal files.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

CHECKOUT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

from spark_jobs.jars import locked_jars  # noqa: E402

SBOM: Final = CHECKOUT / "sbom.cdx.json"
NOTICE: Final = CHECKOUT / "NOTICE"
_PACKAGE: Final = re.compile(r"([a-zA-Z0-9_.-]+)==([^ ;\\]+)")
_SUM: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_LICENCE_OF_JARS: Final = "Apache-2.0"
_HEAD: Final = """rocketmq-lakehouse

Licensed under the Apache License, Version 2.0 (see LICENSE).

This project contains no code of others. It installs, or an image of it contains, the packages and jars below, each under its
own licence. The list is made by `make sbom`; sbom.cdx.json has it with versions and sums, for programs.
"""


class Part(NamedTuple):
    """A package or a jar."""

    purl: str
    group: str
    name: str
    version: str
    licence: str
    """As its metadata says; "" when that is not known here."""
    sums: tuple[str, ...]
    """SHA-256 of each of its files, sorted."""


def parts() -> list[Part]:
    """Everything in the locks, sorted by its package URL."""
    return sorted([*_packages((CHECKOUT / "requirements.txt").read_text()), *_jars()])


def _packages(text: str) -> Iterator[Part]:
    for block in re.split(r"\n(?=[a-zA-Z])", text):
        if match := _PACKAGE.match(block):
            name, version = match.groups()
            yield Part(f"pkg:pypi/{name}@{version}", "", name, version, licence_of(name), tuple(_SUM.findall(block)))


def _jars() -> Iterator[Part]:
    for jar in locked_jars():
        classifier = f"?classifier={jar.classifier}" if jar.classifier else ""
        purl = f"pkg:maven/{jar.organisation}/{jar.artifact}@{jar.version}{classifier}"
        yield Part(purl, jar.organisation, jar.artifact, jar.version, _LICENCE_OF_JARS, (jar.sha256,))


def licence_of(package: str) -> str:
    """What an installed package says, unchanged: its SPDX expression, else the name of its licence, else its classifiers. ""
    when it is not installed or says nothing."""
    try:
        fields = metadata.metadata(package)
    except metadata.PackageNotFoundError:
        return ""
    for name in ("License-Expression", "License"):
        text = " ".join(fields.get_all(name) or ()).strip()
        if text and text != "UNKNOWN" and len(text) < 200 and "\n" not in text:
            return text
    names = {text.rpartition(" :: ")[2] for text in fields.get_all("Classifier") or () if text.startswith("License ::")}
    return "; ".join(sorted(names - {"OSI Approved", "DFSG approved"}))


def sbom(all_parts: list[Part]) -> str:
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion
    from packageurl import PackageURL

    licences = LicenseFactory()
    bom = Bom(
        components=[
            Component(
                type=ComponentType.LIBRARY,
                bom_ref=part.purl,
                purl=PackageURL.from_string(part.purl),
                group=part.group or None,
                name=part.name,
                version=part.version,
                licenses=[licences.make_from_string(part.licence)] if part.licence else (),
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=content) for content in part.sums],
            )
            for part in all_parts
        ]
    )
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    outputter.generate()
    document = json.loads(outputter.output_as_string())
    document.pop("serialNumber", None)
    document.get("metadata", {}).pop("timestamp", None)
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def notice(all_parts: list[Part]) -> str:
    width = max(len(part.purl) for part in all_parts) + 2
    lines = (
        f"{part.purl:{width}}{part.licence or '(not installed on the machine that made this list)'}"
        for part in all_parts
    )
    return f"{_HEAD}\n" + "\n".join(lines) + "\n"


def main() -> int:
    all_parts = parts()
    SBOM.write_text(sbom(all_parts))
    NOTICE.write_text(notice(all_parts))
    print(f"{len(all_parts)} parts in {SBOM.name} and {NOTICE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
