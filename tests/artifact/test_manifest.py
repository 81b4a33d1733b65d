from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tvmstack.artifact import Manifest, read_manifest
from tvmstack.artifact.elf import SectionWriter
from tvmstack.artifact.manifest import MANIFEST, SCHEMA
from tvmstack.core.errors import ArtifactError

pytestmark = pytest.mark.null


def put(path: Path, body: bytes) -> None:
    with path.open("r+b") as file:
        writer = SectionWriter(file, drop=MANIFEST)
        writer.add(MANIFEST, [hashlib.sha256(body).hexdigest().encode() + b"\n" + body])
        writer.finish()


def test_a_manifest_survives_the_way_through_json(manifest: Manifest) -> None:
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest


def test_a_written_manifest_is_read_with_its_places_and_digests(written: Path, manifest: Manifest) -> None:
    found = read_manifest(written)
    assert found.inputs == manifest.inputs
    assert found.outputs == manifest.outputs
    assert [w["shape"] for w in found.weights] == [[7], [2, 3]]
    assert set(found.digests) == {"library", "weights", "regions"}
    assert found.versions["tvm"]


def test_a_library_without_a_manifest_was_not_made_by_us(library: Path) -> None:
    with pytest.raises(ArtifactError, match="was not made by tvmstack"):
        read_manifest(library)


def test_a_newer_schema_asks_for_an_upgrade(written: Path, manifest: Manifest) -> None:
    put(written, json.dumps(replace(manifest, schema=SCHEMA + 1).to_json()).encode())
    with pytest.raises(ArtifactError, match="upgrade tvmstack"):
        read_manifest(written)


def test_fields_of_later_versions_are_passed_over(written: Path, manifest: Manifest) -> None:
    put(written, json.dumps({**manifest.to_json(), "mood": "fine"}).encode())
    assert read_manifest(written).inputs == manifest.inputs


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"schema": 1}', b"\xff\xfe", b'{"schema": "x"}'])
def test_a_manifest_of_another_form_is_refused_in_words(body: bytes, written: Path) -> None:
    put(written, body)
    with pytest.raises(ArtifactError, match="cannot read"):
        read_manifest(written)


def test_a_changed_manifest_does_not_match_its_digest(written: Path) -> None:
    raw = written.read_bytes()
    at = raw.rindex(b'"threads": 2')
    written.write_bytes(raw[:at] + b'"threads": 3' + raw[at + 12 :])
    with pytest.raises(ArtifactError, match="does not match its digest"):
        read_manifest(written)
