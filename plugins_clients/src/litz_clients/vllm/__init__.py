"""litz as the compiler of vLLM's own compile flow (compilation mode 3).

    VLLM_PLUGINS=litz vllm serve ...

vLLM takes a compiler from its platform alone (`get_compile_backend`, `get_pass_manager_cls`). So litz brings a
platform: the one that vLLM would have chosen, with these two answers changed (`platform`). `compiler` has the
compiler's interface, `pass_manager` vLLM's custom passes without the step that would make the graph mutate. Importing
this module imports nothing of vLLM's.
"""

from __future__ import annotations

PLATFORM = "litz_clients.vllm.platform.LitzPlatform"
COMPILER = "litz_clients.vllm.compiler.LitzCompiler"
PASS_MANAGER = "litz_clients.vllm.pass_manager.LitzPassManager"
NAME = "litz"
"""Of the plugin, as VLLM_PLUGINS names it."""


def platform() -> str | None:
    """Returns the name of litz's platform class where VLLM_PLUGINS names litz, and None otherwise. vLLM calls this, the
    entry point of group vllm.platform_plugins.

    An installed litz changes nothing by itself: without VLLM_PLUGINS, vLLM loads all plugins, and litz stays out.
    """
    from vllm import envs

    return PLATFORM if NAME in (envs.VLLM_PLUGINS or ()) else None
