"""The platform that vLLM would have chosen without litz, with litz as the compiler of mode 3.

In: vLLM's own platform of this machine. Out: `LitzPlatform`, which vLLM makes an object of.
"""

from __future__ import annotations

import copy
from typing import Any

from vllm.platforms import builtin_platform_plugins
from vllm.utils.import_utils import resolve_obj_by_qualname

from litz_clients.identity import identity
from litz_clients.vllm import COMPILER, PASS_MANAGER

PIECEWISE = "VLLM_COMPILE"
"""Mode 3, by its name in `vllm.config.CompilationMode`: that module is still being imported when vLLM asks for this
one."""


def _own_platform() -> Any:
    """The class of the one platform of vLLM's own that is there. Errors: RuntimeError where none or several are."""
    found = [name for detect in builtin_platform_plugins.values() if (name := detect()) is not None]
    if len(found) != 1:
        raise RuntimeError(f"litz_clients needs one platform of vLLM's own, and {found or 'none'} are there")
    return resolve_obj_by_qualname(found[0])


class LitzPlatform(_own_platform()):  # type: ignore[misc]
    """vLLM's platform of this machine, with the compiler and the pass manager of litz."""

    @classmethod
    def get_compile_backend(cls) -> str:
        """The compiler's class; vLLM asks where the configuration's `backend` is empty."""
        return COMPILER

    @classmethod
    def get_pass_manager_cls(cls) -> str:
        """The class of what runs vLLM's custom passes."""
        return PASS_MANAGER

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: Any) -> None:
        """Gives litz the graphs that Inductor would get: norms and activations as torch ops, and not as kernels of
        vLLM's that no compiler can fuse. What the user has set stays."""
        super().apply_config_platform_defaults(vllm_config)
        config = vllm_config.compilation_config
        if not _compiles(vllm_config) or config.backend != COMPILER:
            return
        if not {"all", "none"} & set(config.custom_ops):
            config.custom_ops.append("none")
        if config.ir_enable_torch_wrap is None:
            config.ir_enable_torch_wrap = config.mode is None or config.mode.name == PIECEWISE

    @classmethod
    def get_default_ir_op_priority(cls, vllm_config: Any) -> Any:
        """The choice of vLLM for a graph that Inductor compiles."""
        if vllm_config.compilation_config.backend != COMPILER:
            return super().get_default_ir_op_priority(vllm_config)
        seen = copy.copy(vllm_config)
        seen.compilation_config = copy.copy(vllm_config.compilation_config)
        seen.compilation_config.backend = "inductor"
        return super().get_default_ir_op_priority(seen)

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """As vLLM's, but mode 3 stays mode 3: on a CPU vLLM replaces the mode, since Inductor takes too long there, and
        any other compiler by Inductor."""
        config = vllm_config.compilation_config
        mode, backend, wrap = config.mode, config.backend, config.ir_enable_torch_wrap
        super().check_and_update_config(vllm_config)
        if mode.name == PIECEWISE and config.mode.name == "DYNAMO_TRACE_ONCE":
            config.mode, config.backend, config.ir_enable_torch_wrap = mode, backend, wrap
            config.compile_sizes = config.compile_sizes or []  # vLLM sets it only where there are CUDA graphs
        if config.backend == COMPILER and isinstance(vllm_config.additional_config, dict):
            # Part of the key of vLLM's ahead-of-time artifact, which does not ask the compiler for its hash.
            vllm_config.additional_config["litz"] = identity()


def _compiles(vllm_config: Any) -> bool:
    mode = vllm_config.compilation_config.mode
    return bool(vllm_config.optimization_level > 0) if mode is None else mode.name != "NONE"
