"""Targets: a folder for each type of device, with its dialect, its code generator, its build and its launch.

In: a `KernelPlan`. Out: source text, then a function that launches the kernel. `litz.driver.builtin` registers them.
"""
