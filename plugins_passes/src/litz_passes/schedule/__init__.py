"""Passes of the stage "schedule": in and out, a Schedule."""
