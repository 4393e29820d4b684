"""`python -m pilotlight.microservices.batch FOLDER`: the process of one batch job."""

import sys
from pathlib import Path

from pilotlight.microservices.batch.job_folder import JobFolder
from pilotlight.microservices.batch.runner import main

if __name__ == "__main__":
    sys.exit(main(JobFolder(Path(sys.argv[1]))))
