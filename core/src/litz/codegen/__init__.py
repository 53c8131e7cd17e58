"""Code generation: kernels (triton/, cpp/) and the wrapper that runs them. From an ExecutionPlan to source text."""
