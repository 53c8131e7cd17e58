"""Code generation: kernels (triton/, cpp/) and the wrapper that runs them. From a Schedule to source text."""
