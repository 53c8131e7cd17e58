"""litz-tools: what developers use, and a compile does not need.

`plugin` has the hooks, `files` what they write. `bisect` finds the decision that makes a script slow or wrong (`litz
bisect`). `kernel_bench` times a kernel alone (`litz bench-kernels`), `wrapper_bench` a graph (`python wrapper.py`).
`page` has the HTML pages of reports, `trace` their timeline. `calibrate` measures a device for the cost model (`python
-m litz_tools.calibrate`), `demo` runs two real models (`python -m litz_tools.demo`).
"""
