"""What a trained model selects: per-head margins, decisiveness, and in which geometry.

``mirrormax.audit`` is this package and can be called like a function: ``mirrormax.audit(model, batches, p=2)``
is :func:`mirrormax.audit.run.audit`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from mirrormax.audit.result import Audit, Example, Head, ScanPoint, load_audit
from mirrormax.audit.run import audit

__all__ = ["Audit", "Example", "Head", "ScanPoint", "audit", "load_audit"]


class _CallablePackage(ModuleType):
    """A package whose name is also that of its one function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Audit:
        return audit(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
