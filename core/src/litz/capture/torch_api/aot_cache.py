"""AOTAutograd's own disk cache: what lets litz take part, so that a second process traces nothing.

torch keeps, per dynamo graph, how AOTAutograd calls the compiled graphs, and of those graphs a key and lines of text
(`CompiledForward`, `CompiledBackward`): where they lie is the backend's business. torch asks TorchInductor's cache for
them. While litz compiles, it asks litz.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from litz.origins.trust import Trust, warn_once

from .aot_cache_key import check_torchs, is_spelled_out, own_key
from .rules import in_this_thread
from .shapes import guards_since

Load = Callable[[str, str], Callable[..., Any] | None]
"""(key, facts) -> the compiled graph, or None where it is not to be had any more."""

LARGEST = 1 << 30
"""Bytes of an entry that torch may read: an entry has kilobytes."""
MARK = "_litz_setting"
"""The attribute of dynamo's graph by which what litz's own cache key is made of becomes part of torch's."""


def why_not_kept(gm: Any) -> str:
    """Returns why torch's cache does not keep what AOTAutograd makes of `gm`; '' where the cache keeps it."""
    import torch._functorch.config as config

    if not isinstance(gm, torch.fx.GraphModule):
        return "compiled autograd traces anew in each process"
    if not getattr(config, "enable_autograd_cache", False):
        return "torch._functorch.config.enable_autograd_cache is off"
    if torch.compiler.config.force_disable_caches:
        return "torch.compiler.config.force_disable_caches is on"
    missing = _missing()
    if missing:
        return f"torch {torch.__version__} has no {missing}"
    if is_saved_by_torch():
        return "torch bundles compiled graphs with its entries (caching_precompile), which the dist litz-aot does"
    return ""


def is_saved_by_torch() -> bool:
    """Returns whether torch will ask for the bytes of compiled code: `aot_compile` of a function, or precompiling."""
    precompiles = getattr(torch._dynamo.config, "caching_precompile", False)
    return bool(precompiles or getattr(torch._functorch.config, "bundled_autograd_cache", False))


def _missing() -> str:
    """Returns the part of torch's cache that is not as it is known to this file; '' where all is."""
    import torch._functorch.config as config

    if not hasattr(config, "force_autograd_cache"):
        return "torch._functorch.config.force_autograd_cache"
    try:
        from torch._functorch._aot_autograd import aot_autograd_result, autograd_cache
    except Exception as error:  # what torch imports with it reads files in the locale's encoding, for one
        return f"cache of AOTAutograd's that can be imported: {type(error).__name__}: {error}"
    wanted = (
        (aot_autograd_result, "FxGraphCacheLoadable"),
        (autograd_cache, "FXGraphCacheMiss"),
        (autograd_cache.AOTAutogradCache, "try_load"),
    )
    return next((name for module, name in wanted if not hasattr(module, name)), "")


def cache_settings(kept: bool) -> dict[str, Any]:
    """Settings of torch._functorch.config under which AOTAutograd looks into its cache for a backend of any kind, and
    those under which it has none. What fails there is a miss, whatever the user wants of TorchInductor's."""
    return {
        "enable_autograd_cache": kept,
        "force_autograd_cache": kept,
        "enable_remote_autograd_cache": False,
        "strict_autograd_cache": False,
    }


def keep_as(compiled: Callable[..., Any], key: str, facts: str) -> None:
    """Has torch's cache keep `key` and `facts` in place of `compiled`, an object that takes attributes."""
    compiled._fx_graph_cache_key = key  # type: ignore[attr-defined]
    compiled._fx_graph_cache_debug_lines = [facts]  # type: ignore[attr-defined]


def guards_left_out(shape_env: ShapeEnv | None, count: int, example_inputs: Sequence[Any]) -> list[Any]:
    """The guards added after there were `count` of which AOTAutograd's entry would say nothing, as sympy booleans.

    torch keeps the guards over those inputs that are still a symbol of their own. A guard on a float, which is read off
    a tensor, or on a size that the trace has found to be a number or another size, would not be checked when the entry
    is found for other values.
    """
    inputs = {value.node.expr for value in example_inputs if isinstance(value, torch.SymInt)}
    return [guard for guard in guards_since(shape_env, count) if not guard.free_symbols <= inputs]


@contextlib.contextmanager
def found_by(
    gm: torch.fx.GraphModule, setting: str, load: Load, trust: Trust, missed: Callable[[], None]
) -> Iterator[None]:
    """While this is entered, AOTAutograd takes what it has kept for `gm` under the same `setting`, from folders that
    `trust` has nothing against, as torch unpickles what lies there, and asks `load` for the compiled graphs. Where
    `load` returns None or raises, it calls `missed` and traces."""
    from torch._functorch._aot_autograd import aot_autograd_result, autograd_cache

    torchs_key, torchs_load = autograd_cache.autograd_cache_key, autograd_cache.AOTAutogradCache.try_load

    def key_of(module: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        make = own_key if is_spelled_out(module) else torchs_key
        check_torchs(module, example_inputs)
        key, lines = make(module, example_inputs, *args, **kwargs)
        _check_folder(autograd_cache.AOTAutogradCache._get_tmp_dir_for_key(key), trust)
        return key, lines

    def load_graph(self: Any, example_inputs: Sequence[Any], *rest: Any) -> Any:
        key, lines = self.fx_graph_cache_info
        compiled = load(key, lines[0]) if len(lines) == 1 else None
        if compiled is None:
            raise autograd_cache.FXGraphCacheMiss
        self.example_inputs, self.constants = example_inputs, None
        compiled.post_compile = _nothing_left  # type: ignore[attr-defined]
        return compiled

    def try_load(*args: Any, **kwargs: Any) -> Any:
        found = torchs_load(*args, **kwargs)
        if (found[0] if isinstance(found, tuple) else found) is None:  # torch 2.11 returns the callable alone
            missed()
        return found

    setattr(gm, MARK, setting)
    asks = in_this_thread(autograd_cache.AOTAutogradCache, "try_load", try_load)
    loads = in_this_thread(aot_autograd_result.FxGraphCacheLoadable, "load", load_graph)
    try:
        with loads, asks, in_this_thread(autograd_cache, "autograd_cache_key", key_of):
            yield
    finally:
        delattr(gm, MARK)


def _nothing_left(*args: Any) -> None:
    """Does nothing, where torch finishes TorchInductor's graphs after they are loaded."""


def _check_folder(folder: str, trust: Trust) -> None:
    """Raises torch's BypassAOTAutogradCache where reading the entries of a key might not end, ends the process, or runs
    what somebody else has put there, and where nothing can be written for a later process. torch itself reads whatever
    is there."""
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache

    with contextlib.suppress(OSError):  # else somebody else may make it between the look and torch's reading
        _make(Path(folder), trust)
    problem = trust.problem_of(folder)
    if problem:
        problem = f"is not used: {problem}"
    elif os.path.isdir(folder):
        with os.scandir(folder) as files:
            found = {file.path: file.stat(follow_symlinks=False) for file in files if not file.name.startswith(".")}
        if any(not stat.S_ISREG(file.st_mode) or file.st_size > LARGEST for file in found.values()):
            problem = "has links, pipes or huge files in place of entries. Remove the folder"
        elif not _is_closed(folder) and (foreign := next(filter(None, map(trust.problem_of, found)), "")):
            problem = f"is not used: {foreign}"
    else:
        problem = "cannot be written. Make the folder usable"
    if problem:
        text = f"{os.path.dirname(folder)}, torch's cache of traces, {problem}"
        warn_once(
            f"litz has graphs traced anew in each process: {text}, or name another: TORCHINDUCTOR_CACHE_DIR=/path"
        )
        raise BypassAOTAutogradCache(text)


def _make(folder: Path, trust: Trust) -> None:
    """Makes the folder of a key, which nobody else may enter where the process's mask lets others write the files that
    torch writes there. Errors: OSError."""
    trust.make(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
        (like := folder / ".like").mkdir(0o777)
        open_mode, closed_mode = like.stat().st_mode & trust.mode, 0o770 if trust.groups else 0o700
        folder.chmod(open_mode if trust.owns(like) else closed_mode)
        like.rmdir()


def _is_closed(folder: str) -> bool:
    """Returns whether nobody can enter the folder who may not write there."""
    mode = os.stat(folder).st_mode
    return not mode & stat.S_IXOTH and bool(mode & stat.S_IWGRP or not mode & stat.S_IXGRP)
