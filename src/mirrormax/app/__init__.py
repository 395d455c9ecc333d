"""The explorer: a local page that shows what attention selects. Start it with ``mirrormax explore``."""

from mirrormax.app.guards import server_settings
from mirrormax.app.server import Backend, make_app
