"""`python -m litz_testing.conformance`."""

from .cli import main

main()
