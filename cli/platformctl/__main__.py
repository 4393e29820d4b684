"""`python -m platformctl`, for where the console script is not on the path."""

from platformctl.main import main

main()
