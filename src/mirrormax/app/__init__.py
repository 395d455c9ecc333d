"""The explorer: a local page that shows what attention selects. Start it with ``mirrormax explore``."""
