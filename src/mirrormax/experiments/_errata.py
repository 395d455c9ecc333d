"""What we found in the paper's print, proofs and protocol: each in one sentence, with where it is shown.

They stand in ``errata.json``: *errata* are wrong and change a number, a proof or what a figure shows, *limits* are
right, with how far they reach, *misprints* change nothing, and *readings* say how the text is read where it is open.
Every one was read in the text of arXiv 2410.14581 v1; what comes from the authors' scripts or notebooks says so.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import NamedTuple


class Erratum(NamedTuple):
    """Where it stands, what is wrong or right there, the experiment that shows it (none if nothing was run), and what
    else there is to say."""

    where: str
    sentence: str
    shown_by: str = ""
    more: str = ""


_LISTS = json.loads(files(__package__).joinpath("errata.json").read_text("utf-8"))
ERRATA, LIMITS = (tuple(Erratum(**each) for each in _LISTS[name]) for name in ("errata", "limits"))
MISPRINTS, READINGS = _LISTS["misprints"], _LISTS["readings"]  # pairs of a place and a sentence
