"""Figures, made from saved results only."""

from typing import TYPE_CHECKING

from mirrormax._lazy import lazy

if TYPE_CHECKING:
    # For other rooms; not part of the face.
    from mirrormax.report.audits import sentences as sentences
    from mirrormax.report.audits import summary as summary
    from mirrormax.report.audits import write_audit as write_audit
    from mirrormax.report.comparisons import write_comparison as write_comparison
    from mirrormax.report.pruned import PRUNED_KIND as PRUNED_KIND
    from mirrormax.report.pruned import write_pruned as write_pruned
    from mirrormax.report.reproduction import Block as Block
    from mirrormax.report.reproduction import fold as fold
    from mirrormax.report.reproduction import reproduction_page as reproduction_page

__getattr__, __dir__ = lazy(__name__)
