"""litz-tools: what developers use, and a compile does not need.

`plugin` has the hooks, `files` what they write. `bisect` finds the decision that makes a script slow or wrong (`litz
bisect`). `kernel_bench` times a kernel alone (`litz bench-kernels`; `kernel_files` finds the files),
`wrapper_bench` a graph (`python wrapper.py`). `measured` and `beside` put measured times and another run into a page
(`litz report`). `guards` has when a graph is used again, `resources` what a CUDA kernel takes.
`text` prints reports (`litz explain`), `page` has their HTML pages, `trace` their timeline, `hints` what logs say of
them, `progress` the line of a long compile, `failure_script` a failed graph as a script. `speeds` and `trials` measure
a device, `steady` says whether that can be believed, and `device_file` writes what they find (`litz calibrate`).
`doctor` tests the machine (`litz doctor`), `plugin_checks` tries plugins (`litz check-plugins`), `cache_misses` says
why a graph was not in the cache (`litz explain-miss`). `demo` runs two real models (`python -m litz_tools.demo`).
"""
