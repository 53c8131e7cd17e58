"""litz-clients: what other programs need to take litz, where a backend's name is not enough.

Each program finds its part by its own entry points, and nothing in any program is patched:

    vLLM         `litz_clients.vllm`: a platform plugin, chosen by `VLLM_PLUGINS=litz`
    torchtitan   `litz_clients.torchtitan`: a pass of the graph trainer

All parts build on `litz.standalone_compile`. Where a program works with objects of torch._inductor, `inductor` has what
that program asks for: no other dist of litz imports torch._inductor. docs/use/clients.md says how litz is chosen in
each program. Importing this module imports nothing heavy.
"""
