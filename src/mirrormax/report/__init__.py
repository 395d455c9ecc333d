"""Figures, made from saved results only."""

from typing import TYPE_CHECKING

from mirrormax._lazy import lazy

if TYPE_CHECKING:
    from mirrormax.report.audit_words import milder, sentences, summary, tellings
    from mirrormax.report.audits import PRUNED_KIND, comparison_groups, write_audit, write_comparison, write_pruned
    from mirrormax.report.reproduction import Block, claims_table, fold, reproduction_page

__getattr__, __dir__ = lazy(__name__)
