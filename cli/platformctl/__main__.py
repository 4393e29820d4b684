"""`python -m platformctl`, if the console script is not on the PATH."""

from platformctl.main import main

main()
