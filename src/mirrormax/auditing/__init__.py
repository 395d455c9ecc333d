"""What a trained model selects: per-head margins, decisiveness, and in which geometry."""

from typing import TYPE_CHECKING

from mirrormax._lazy import lazy

if TYPE_CHECKING:
    from mirrormax._statistics import Estimate
    from mirrormax.auditing.adapters import Adapter, adapter_for
    from mirrormax.auditing.changes import MAX_MARGIN, MEAN, OFF, ablate, check_heads
    from mirrormax.auditing.data import Batches, Data, make_batches, read_data
    from mirrormax.auditing.kinds import KINDS
    from mirrormax.auditing.loading import load_for_audit, packaged_model
    from mirrormax.auditing.margins import growth_notes
    from mirrormax.auditing.models import Loaded, OwnModel
    from mirrormax.auditing.options import AuditOptions, Vocabulary
    from mirrormax.auditing.patterns import Pattern, attention_patterns, logit_attribution
    from mirrormax.auditing.pruned import (
        SHARES,
        PruningReport,
        apart,
        check_export,
        export_pruned,
        measure_of,
        measure_pruning,
        quality_of,
        save_pruned,
        stored_once,
    )
    from mirrormax.auditing.result import (
        KIND,
        REVISION,
        Audit,
        Effect,
        Example,
        Head,
        Removal,
        ScanPoint,
        columns,
        load_audit,
        relative_to_controls,
    )
    from mirrormax.auditing.run import ENOUGH_SHUFFLED, audit, head_kinds
    from mirrormax.auditing.sides import (
        MARGINS,
        METRICS,
        Reading,
        Side,
        check_comparable,
        comparison,
        measure_side,
        read_reviews,
        score_readings,
        score_review,
    )
    from mirrormax.auditing.watch import log_odds, scorer, watching
    from mirrormax.auditing.weights import attention_weights, sparsity

__all__ = [
    "Adapter",
    "Audit",
    "AuditOptions",
    "Effect",
    "Example",
    "Head",
    "Pattern",
    "Removal",
    "ScanPoint",
    "Vocabulary",
    "ablate",
    "adapter_for",
    "attention_patterns",
    "audit",
    "load_audit",
    "logit_attribution",
]

__getattr__, __dir__ = lazy(__name__)
