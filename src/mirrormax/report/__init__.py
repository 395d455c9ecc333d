"""Figures, made from saved results only."""

from typing import TYPE_CHECKING

from mirrormax._lazy import lazy

if TYPE_CHECKING:
    from mirrormax.report.audit_words import milder, sentences, summary, tellings
    from mirrormax.report.audits import write_audit
    from mirrormax.report.comparisons import comparison_groups, write_comparison
    from mirrormax.report.pruned import PRUNED_KIND, write_pruned
    from mirrormax.report.reproduction import Block, claims_table, fold, reproduction_page

__getattr__, __dir__ = lazy(__name__)
