"""Refuse news fragments whose name is not NUMBER.TYPE.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

TYPES = ("feature", "fix", "speed", "docs", "removal")
NEWS = Path(__file__).resolve().parent.parent / "news"


def wrong_names(folder: Path) -> list[str]:
    """Return the files that are no fragment; README.md is allowed."""
    pattern = re.compile(rf"\d+\.({'|'.join(TYPES)})\.md")
    return sorted(p.name for p in folder.iterdir() if p.name != "README.md" and not pattern.fullmatch(p.name))


def main() -> int:
    wrong = wrong_names(NEWS)
    for name in wrong:
        print(f"news/{name}: fragments are named NUMBER.TYPE.md, TYPE one of {', '.join(TYPES)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
