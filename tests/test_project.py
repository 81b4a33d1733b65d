"""Claims about the project itself: what is public is documented, the rooms match their map, imports stay clean."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tvmstack
from scripts import check_news, reference
from tvmstack._version import VERSION
from tvmstack.cli.root import root

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.null


def test_every_command_is_in_the_generated_reference() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    for name, _ in reference.commands(root):
        assert f"## `{name}`" in text


def test_every_command_a_person_meets_first_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    for name in root.commands:
        assert f"tvmstack {name}" in text, name


def test_rooms_match_their_map() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"^\| `(\w+)(?:/|\.py)?`", text, re.MULTILINE))
    rooms = {p.name for p in (ROOT / "tvmstack").iterdir() if (p / "__init__.py").exists() or list(p.glob("*.jsonl"))}
    assert rooms <= named | {"schedules", "tuning_logs"}
    assert named - {"schedules", "tuning_logs"} <= rooms | {"_tvm"}


def test_public_verbs_are_documented_and_loaded_late() -> None:
    for name in tvmstack.__all__:
        value = getattr(tvmstack, name)
        assert name == "__version__" or value.__doc__, name
    assert tvmstack.__version__ == VERSION
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tvmstack.nothing


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        ("tvmstack", ("numpy", "tvm", "onnx", "onnxruntime")),
        ("tvmstack.cli", ("numpy", "tvm", "onnx", "onnxruntime", "rich", "sqlalchemy")),
        (
            "tvmstack.runtime",
            ("tvm.relax", "tvmstack._tvm", "onnx", "onnx_ir", "onnxruntime", "sqlalchemy", "tvmstack.lower"),
        ),
    ],
)
def test_an_import_brings_in_nothing_it_must_not(module: str, banned: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([m for m in {banned!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_links_in_documents_lead_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_news_fragments_are_named_so_that_a_release_finds_them(tmp_path: Path) -> None:
    assert check_news.wrong_names(ROOT / "news") == []
    (tmp_path / "something.md").touch()
    (tmp_path / "3.fix.md").touch()
    assert check_news.wrong_names(tmp_path) == ["something.md"]


def test_decisions_are_numbered_without_gaps_and_short() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(p.name[:4]) for p in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        assert len(page.read_text().splitlines()) <= 40, page.name


def test_schedules_and_logs_reach_the_package_as_links_to_the_top_level() -> None:
    for name in ("schedules", "tuning_logs"):
        assert (ROOT / "tvmstack" / name).resolve() == ROOT / name
