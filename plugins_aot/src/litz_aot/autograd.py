"""What AOTAutograd puts around compiled graphs, as data: in, its own records; out, JSON-able data, and what calls the
graphs with all of that around them again. The one module for artifacts that touches AOTAutograd's private parts.

AOTAutograd handles what a graph of plain tensors cannot: results that are views of inputs, writes into inputs, inputs
that share memory, tensor subclasses, and autograd itself. What it has to know at run time is in a few records
(`ViewAndMutationMeta`, wrappers). `recorded` hears of them while a graph is compiled, and `wrapped` puts them to work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from unittest import mock

from litz.capture import torch_api
from litz.capture.backward_inputs import SavedTensorHooks, as_traced
from litz.capture.kept import Facts
from litz.capture.torch_api.settings import functorch_settings

from .records import decoded, encoded

KEPT = (
    *("runtime_metadata", "dispatch_wrappers", "maybe_subclass_meta", "num_fw_outs_saved_for_bw"),
    *("indices_of_inps_to_detach", "backward_state_indices", "num_symints_saved_for_bw"),
)
"""What of AOTAutograd's result `wrapped` goes by, by the name of the argument of its `make_entry` (2.11 to 2.13)."""
_PLAIN = ("non_alias", "unsafe_view_alias", "custom_function_view")
"""Types of outputs that AOTAutograd returns as the graph returned them."""


@contextlib.contextmanager
def recorded(found: list[Mapping[str, Any]]) -> Iterator[None]:
    """While this is entered, AOTAutograd compiles a backward together with its forward, looks into no cache, and what
    it would keep of its result is appended to `found`. Entered under dynamo's lock (`compile_with_aot`), as AOTAutograd
    has its cache in one place for all."""
    from torch._functorch import aot_autograd
    from torch._functorch._aot_autograd import autograd_cache
    from torch._functorch._aot_autograd.schemas import AOTAutogradCacheInfo

    cache = autograd_cache.AOTAutogradCache
    bind, loads = inspect.signature(cache.make_entry).bind, inspect.signature(cache.try_load)

    def make_entry(*args: Any, **kwargs: Any) -> Mapping[str, Any]:
        found.append(dict(bind(*args, **kwargs).arguments))
        return found[-1]

    def try_load(*args: Any, **kwargs: Any) -> Any:
        config = loads.bind(*args, **kwargs).arguments["aot_config"]
        info = AOTAutogradCacheInfo("", time.time_ns(), forward_symints=[])
        if "Tuple" not in str(loads.return_annotation) and "tuple" not in str(loads.return_annotation):
            config.cache_info = info  # torch 2.11 and 2.12 return the callable alone
            return None
        return None, dataclasses.replace(config, cache_info=info)

    replaced = {
        "make_entry": staticmethod(make_entry),
        "try_load": staticmethod(try_load),
        "save": staticmethod(lambda *args, **kwargs: None),
        "generate_guards_expression": classmethod(lambda cls, info: None),
    }
    with contextlib.ExitStack() as stack:
        for name, function in replaced.items():
            stack.enter_context(mock.patch.object(cache, name, function))
        stack.enter_context(mock.patch.object(aot_autograd, "should_use_local_autograd_cache", lambda: True))
        stack.enter_context(functorch_settings(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True))
        yield


def facts_of(entry: Mapping[str, Any]) -> dict[str, str]:
    """Returns what litz noted of each compiled graph (`litz.capture.kept.Facts`), as text by the graph's kind. A graph
    of which litz noted nothing is missing."""
    functions = (entry["compiled_fw_func"], entry["compiled_bw_func"])
    known = [(getattr(one, "_fx_graph_cache_key", ""), one) for one in functions if one is not None]
    return {key: one._fx_graph_cache_debug_lines[0] for key, one in known if key}


def plain_outputs(entry: Mapping[str, Any]) -> list[int | None] | None:
    """Returns, where a graph needs nothing of AOTAutograd's around it, for each output the position of the input that
    the output is, or None; None where the graph needs it."""
    meta = entry["runtime_metadata"]
    needs = (
        entry["compiled_bw_func"] is not None,
        entry["maybe_subclass_meta"] is not None,
        *(getattr(wrapper, "needs_post_compile", False) for wrapper in entry["dispatch_wrappers"]),
        *(len(getattr(wrapper, "old_input_info", None) or ()) > 0 for wrapper in entry["dispatch_wrappers"]),
        meta.tokens,
        meta.num_mutated_inp_runtime_indices,
        meta.num_intermediate_bases,
        meta.grad_enabled_mutation is not None,
        getattr(meta, "act_input_indices", None),
        getattr(meta, "num_graphsafe_rng_states", 0),
        any(hasattr(made, "original_subclass") for made in meta.subclass_inp_meta or ()),
        any(info.output_type.name not in (*_PLAIN, "is_input") for info in meta.output_info),
    )
    if any(needs):
        return None
    return [None if info.output_type.name in _PLAIN else info.base_idx for info in meta.output_info]


def wrappers_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what `wrapped` has to know, as JSON-able data. Errors: ValueError for what cannot be said as data."""
    known = {name: encoded(entry[name]) for name in KEPT}
    return {**known, "count": entry["sanitized_aot_config"].num_params_buffers}


def wrapped(entries: Mapping[str, Callable[..., Any]], call: Mapping[str, Any]) -> Callable[[list[Any]], Sequence[Any]]:
    """Returns what calls the compiled graphs with AOTAutograd's wrappers around them; takes the inputs as one list.

    entries: by kind. call: what is known of a call: "wrappers" as `wrappers_of` returned them, "facts" by kind.
    """
    hooks, known = SavedTensorHooks(), {kind: Facts.from_text(text) for kind, text in call["facts"].items()}
    ready = {kind: _with_facts(entries[kind], known[kind], hooks) for kind in entries}
    data = {name: decoded(call["wrappers"][name]) for name in KEPT}
    run = _in_wrappers(ready, data, call["wrappers"]["count"])
    (main,) = (facts for kind, facts in known.items() if kind != "backward")
    bits = {} if main is None else dict(main.bits or {})
    if not bits:
        return run
    return lambda args: torch_api.with_lazy_bits(lambda *given: run(list(given)), bits)(*args)


def _with_facts(entry: Callable[..., Any], facts: Facts | None, hooks: SavedTensorHooks) -> Callable[..., Any]:
    """A compiled graph as capture hands it to AOTAutograd."""
    if facts is None:
        raise ValueError("what is noted of a graph cannot be read")
    ready: Callable[..., Any] = partial(entry)
    ready._boxed_call = True  # type: ignore[attr-defined]
    if facts.unwatched:
        ready = torch_api.unwatched(ready)
    if facts.kind == "backward":
        if facts.inputs is None:
            raise ValueError("nothing is noted of a backward's inputs")
        ready = torch_api.disable_dynamo(as_traced(ready, facts.inputs, hooks), "litz compiled this backward graph")
    elif facts.kind == "forward":
        ready = hooks.watching(ready)
    ready._boxed_call = True  # type: ignore[attr-defined]
    return ready


def _in_wrappers(
    ready: Mapping[str, Callable[..., Any]], data: Mapping[str, Any], count: int
) -> Callable[[list[Any]], Sequence[Any]]:
    """As AOTAutograd wraps a result that it finds in its cache (`GenericAOTAutogradResult`)."""
    import torch._dynamo  # noqa: F401 (before what it imports in a circle)
    from torch._functorch._aot_autograd import runtime_wrappers as torchs
    from torch._functorch._aot_autograd.schemas import AOTConfig

    meta, joint = data["runtime_metadata"], "backward" in ready
    config = AOTConfig(
        fw_compiler=None,
        bw_compiler=None,
        partition_fn=None,
        decompositions=None,
        num_params_buffers=count,
        aot_id=0,
        keep_inference_input_mutations=True,
    )
    run = torchs.AOTDispatchSubclassWrapper(
        trace_joint=joint,
        fw_only=None,
        maybe_subclass_meta=data["maybe_subclass_meta"],
        num_fw_outs_saved_for_bw=data["num_fw_outs_saved_for_bw"],
    ).post_compile(ready["forward" if joint else "inference"], config, runtime_metadata=meta)
    random = torchs.FunctionalizedRngRuntimeWrapper(return_new_outs=not joint)
    run = random.post_compile(run, config, runtime_metadata=meta)
    run._boxed_call = True  # type: ignore[attr-defined]
    detached = data["indices_of_inps_to_detach"]
    if joint:
        known = {
            "compiled_fw_func": run,
            "compiled_bw_func": ready["backward"],
            "maybe_subclass_meta": data["maybe_subclass_meta"],
            "num_symints_saved_for_bw": data["num_symints_saved_for_bw"],
            "backward_state_indices": data["backward_state_indices"],
            "disable_amp": False,
            "indices_of_inps_to_detach": detached,
            "lazy_backward_info": None,
            "bw_compiler": None,
            "aot_config": config,
            "fw_metadata": meta,
            "try_save_cache_entry": None,
        }
        spec = getattr(torchs, "AOTDispatchAutogradCompileSpec", None)
        if spec is not None:
            run = torchs.AOTDispatchAutograd.post_compile(spec(**known))
        else:  # torch 2.11
            names = {
                "num_symints_saved_for_bw": "num_symints_saved_for_bw_",
                "lazy_backward_info": "lazy_backward_info",
            }
            taken = inspect.signature(torchs.AOTDispatchAutograd.post_compile).parameters
            given = {names.get(name, name) if names.get(name, name) in taken else name: v for name, v in known.items()}
            run = torchs.AOTDispatchAutograd.post_compile(**{k: v for k, v in given.items() if k in taken})
    else:
        runtime = torchs.RuntimeWrapper(indices_of_inps_to_detach=detached, trace_joint=False, disable_amp=False)
        run = runtime.post_compile(run, config, runtime_metadata=meta)
    done = torchs.post_compile(data["dispatch_wrappers"], run, config, runtime_metadata=meta)
    return done[0] if isinstance(done, tuple) else done
