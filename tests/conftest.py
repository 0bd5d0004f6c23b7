"""How property tests run: never against the clock, and the same cases every time where CI is set."""

import os

from hypothesis import settings

settings.register_profile("capedjica", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("capedjica")
