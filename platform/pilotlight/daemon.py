"""`python -m pilotlight.daemon`: the name by which running gateways of earlier releases start the control process."""

import sys

from pilotlight.control_plane.daemon import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
