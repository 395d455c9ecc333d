"""What a trained model selects: per-head margins, decisiveness, and in which geometry."""

from mirrormax.auditing.result import Audit, Example, Head, ScanPoint, load_audit
from mirrormax.auditing.run import audit

__all__ = ["Audit", "Example", "Head", "ScanPoint", "audit", "load_audit"]
