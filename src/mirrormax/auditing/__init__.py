"""What a trained model selects: per-head margins, decisiveness, and in which geometry."""

# For other rooms; not part of the face.
from mirrormax.auditing.adapters import adapter_for as adapter_for
from mirrormax.auditing.batches import Batches as Batches
from mirrormax.auditing.batches import make_batches as make_batches
from mirrormax.auditing.bootstrap import Estimate as Estimate
from mirrormax.auditing.cuts import SHARES as SHARES
from mirrormax.auditing.cuts import CutReport as CutReport
from mirrormax.auditing.cuts import apart as apart
from mirrormax.auditing.cuts import measure_cut as measure_cut
from mirrormax.auditing.cuts import measure_of as measure_of
from mirrormax.auditing.data import Data as Data
from mirrormax.auditing.data import read_data as read_data
from mirrormax.auditing.heads import growth_notes as growth_notes
from mirrormax.auditing.heads import head_kinds as head_kinds
from mirrormax.auditing.interventions import MAX_MARGIN as MAX_MARGIN
from mirrormax.auditing.interventions import OFF as OFF
from mirrormax.auditing.interventions import SINK as SINK
from mirrormax.auditing.interventions import Telling as Telling
from mirrormax.auditing.interventions import milder as milder
from mirrormax.auditing.interventions import tellings as tellings
from mirrormax.auditing.kinds import KINDS as KINDS
from mirrormax.auditing.layers import scorer as scorer
from mirrormax.auditing.layers import watching as watching
from mirrormax.auditing.loading import load_for_audit as load_for_audit
from mirrormax.auditing.loading import packaged_model as packaged_model
from mirrormax.auditing.loading import save_cut as save_cut
from mirrormax.auditing.loading import stored_once as stored_once
from mirrormax.auditing.models import Loaded as Loaded
from mirrormax.auditing.pairs import MARGINS as MARGINS
from mirrormax.auditing.pairs import Side as Side
from mirrormax.auditing.pairs import check_comparable as check_comparable
from mirrormax.auditing.pairs import comparison as comparison
from mirrormax.auditing.pairs import measure_side as measure_side
from mirrormax.auditing.pivots import METRICS as METRICS
from mirrormax.auditing.pivots import PivotScores as PivotScores
from mirrormax.auditing.pivots import Reading as Reading
from mirrormax.auditing.pivots import compare as compare
from mirrormax.auditing.pivots import mean_scores as mean_scores
from mirrormax.auditing.pivots import read_reviews as read_reviews
from mirrormax.auditing.pivots import score_readings as score_readings
from mirrormax.auditing.pivots import score_review as score_review
from mirrormax.auditing.result import KIND as KIND
from mirrormax.auditing.result import Audit, Example, Head, ScanPoint, load_audit
from mirrormax.auditing.result import relative_to_controls as relative_to_controls
from mirrormax.auditing.run import audit
from mirrormax.auditing.settings import TARGETS as TARGETS
from mirrormax.auditing.settings import check_settings as check_settings
from mirrormax.auditing.weights import attention_weights as attention_weights
from mirrormax.auditing.weights import sparsity as sparsity

__all__ = ["Audit", "Example", "Head", "ScanPoint", "audit", "load_audit"]
