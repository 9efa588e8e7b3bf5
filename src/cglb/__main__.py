"""`python -m cglb`."""

from cglb.cli import main

main()
