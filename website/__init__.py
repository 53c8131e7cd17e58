"""The documentation's site: `make docs` builds it from docs/ and from the code. No dist of litz's needs this folder."""
