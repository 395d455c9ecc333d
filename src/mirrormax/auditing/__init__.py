"""What a trained model selects: per-head margins, decisiveness, and in which geometry."""

from typing import TYPE_CHECKING

from mirrormax._lazy import lazy

if TYPE_CHECKING:
    # For other rooms; not part of the face.
    from mirrormax._statistics import Estimate as Estimate
    from mirrormax.auditing.adapters import Adapter, adapter_for
    from mirrormax.auditing.changes import MAX_MARGIN as MAX_MARGIN
    from mirrormax.auditing.changes import MEAN as MEAN
    from mirrormax.auditing.changes import OFF as OFF
    from mirrormax.auditing.changes import SINK as SINK
    from mirrormax.auditing.changes import Telling as Telling
    from mirrormax.auditing.changes import ablate
    from mirrormax.auditing.changes import milder as milder
    from mirrormax.auditing.changes import tellings as tellings
    from mirrormax.auditing.data import Batches as Batches
    from mirrormax.auditing.data import Data as Data
    from mirrormax.auditing.data import make_batches as make_batches
    from mirrormax.auditing.data import read_data as read_data
    from mirrormax.auditing.heads import ENOUGH_SHUFFLED as ENOUGH_SHUFFLED
    from mirrormax.auditing.heads import growth_notes as growth_notes
    from mirrormax.auditing.heads import head_kinds as head_kinds
    from mirrormax.auditing.kinds import KINDS as KINDS
    from mirrormax.auditing.loading import load_for_audit as load_for_audit
    from mirrormax.auditing.loading import packaged_model as packaged_model
    from mirrormax.auditing.models import Loaded as Loaded
    from mirrormax.auditing.models import OwnModel as OwnModel
    from mirrormax.auditing.options import AuditOptions, Vocabulary
    from mirrormax.auditing.options import options_of as options_of
    from mirrormax.auditing.patterns import Pattern, attention_patterns, logit_attribution
    from mirrormax.auditing.pruned import SHARES as SHARES
    from mirrormax.auditing.pruned import PruningReport as PruningReport
    from mirrormax.auditing.pruned import apart as apart
    from mirrormax.auditing.pruned import check_export as check_export
    from mirrormax.auditing.pruned import export_pruned as export_pruned
    from mirrormax.auditing.pruned import measure_of as measure_of
    from mirrormax.auditing.pruned import measure_pruning as measure_pruning
    from mirrormax.auditing.pruned import quality_of as quality_of
    from mirrormax.auditing.pruned import save_pruned as save_pruned
    from mirrormax.auditing.pruned import stored_once as stored_once
    from mirrormax.auditing.result import KIND as KIND
    from mirrormax.auditing.result import REVISION as REVISION
    from mirrormax.auditing.result import Audit, Effect, Example, Head, Removal, ScanPoint, load_audit
    from mirrormax.auditing.result import columns as columns
    from mirrormax.auditing.result import relative_to_controls as relative_to_controls
    from mirrormax.auditing.run import audit
    from mirrormax.auditing.sides import MARGINS as MARGINS
    from mirrormax.auditing.sides import METRICS as METRICS
    from mirrormax.auditing.sides import PivotScores as PivotScores
    from mirrormax.auditing.sides import Reading as Reading
    from mirrormax.auditing.sides import Side as Side
    from mirrormax.auditing.sides import check_comparable as check_comparable
    from mirrormax.auditing.sides import compare as compare
    from mirrormax.auditing.sides import comparison as comparison
    from mirrormax.auditing.sides import measure_side as measure_side
    from mirrormax.auditing.sides import read_reviews as read_reviews
    from mirrormax.auditing.sides import score_readings as score_readings
    from mirrormax.auditing.sides import score_review as score_review
    from mirrormax.auditing.watch import scorer as scorer
    from mirrormax.auditing.watch import watching as watching
    from mirrormax.auditing.weights import attention_weights as attention_weights
    from mirrormax.auditing.weights import sparsity as sparsity

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
