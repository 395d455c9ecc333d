"""Nobody goes past a room's door: what a room's ``__init__`` does not offer is its own."""

import re
from pathlib import Path

import mirrormax

ROOT = Path(mirrormax.__file__).parent
PAST = re.compile(r"^\s*(?:from|import) mirrormax\.(\w+)\.\w+", re.M)


def test_rooms_import_from_rooms_and_not_from_the_modules_within():
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0]
        past = [line[0].strip() for line in PAST.finditer(path.read_text("utf-8")) if line[1] != room]
        assert past == [], path
