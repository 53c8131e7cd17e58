"""Ways to run a contraction other than the library's: in, a Template and where it stands; out, `Choice`s, or why there
is none. See docs/contractions.md."""
