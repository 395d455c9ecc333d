"""The explorer: a local page that shows what attention selects. Start it with ``mirrormax explore``."""

# For other rooms; not part of the face.
from mirrormax.app.guards import server_settings as server_settings
from mirrormax.app.server import Backend as Backend
from mirrormax.app.server import make_app as make_app
