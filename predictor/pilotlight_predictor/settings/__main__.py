"""Generator of docs/settings.md: `python -m pilotlight_predictor.settings > docs/settings.md`."""

import sys

from pilotlight_predictor.settings.text import page

sys.stdout.write(page())
