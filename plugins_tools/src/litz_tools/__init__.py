"""litz-tools: what developers use, and a compile does not need.

`plugin` has the hooks. `bisect` finds the decision that makes a script slow or wrong (`litz bisect`). `demo` runs two
real models (`python -m litz_tools.demo`).
"""
