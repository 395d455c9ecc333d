"""Figures, made from saved results only."""

# For other rooms; not part of the face.
from mirrormax.report.audits import sentences as sentences
from mirrormax.report.audits import write_audit as write_audit
from mirrormax.report.audits import write_comparison as write_comparison
from mirrormax.report.cuts import CUT_KIND as CUT_KIND
from mirrormax.report.cuts import write_cut as write_cut
from mirrormax.report.reproduction import Block as Block
from mirrormax.report.reproduction import fold as fold
from mirrormax.report.reproduction import reproduction_page as reproduction_page
