"""`python -m pilotlight.microservices.batch FOLDER`: the process of one batch job."""

import sys
from pathlib import Path

from pilotlight.microservices.batch.keeping import Kept
from pilotlight.microservices.batch.runner import main

if __name__ == "__main__":
    sys.exit(main(Kept(Path(sys.argv[1]))))
