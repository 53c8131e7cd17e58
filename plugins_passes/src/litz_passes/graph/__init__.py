"""Passes of the stage "graph": in and out, a Graph."""
