"""Passes of the stage "program": in and out, a Program."""
