"""`python -m litz.testing.conformance`."""

from .cli import main

main()
