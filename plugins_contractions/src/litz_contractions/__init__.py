"""litz-contractions: ways to run a contraction other than the library's. In: a Template and where it stands. Out:
`Choice`s, or why there is none. See docs/contractions.md.

`plugin` has litz's hooks, `api` what others may use of the rest.
"""
