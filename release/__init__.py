"""Releases: `python -m release.build` makes wheels and sdists of all dists, `python -m release.trial` installs them in
a fresh environment and uses them there. `make dist` does both."""
