"""litz-numerics: results and gradients that are bit for bit those of eager (`numerics.mode="strict"`).

`plugin` has the hooks; `exact` reads the table of what litz may generate then (`exact.toml`), `rules` keeps to it,
`rounding` makes each rounding that eager makes, and `left` says what is left to torch. `rounded` is for
`numerics.mode="rounded"`, which makes eager's roundings and no more (`rounded.toml`).
`orders` and `invariant` are for `numerics.batch_invariant` (`invariant.toml`).
"""
