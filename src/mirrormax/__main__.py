"""``python -m mirrormax``."""

from mirrormax.commands import main

raise SystemExit(main())
