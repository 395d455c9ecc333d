"""``python -m mirrormax``."""

from mirrormax.cli import main

raise SystemExit(main())
