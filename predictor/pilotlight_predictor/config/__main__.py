"""Generator of docs/settings.md: `python -m pilotlight_predictor.config > docs/settings.md`."""

import sys

from pilotlight_predictor.config.help import page

sys.stdout.write(page())
