"""Every error: one message with what, where and what to do; and alive after pickling."""

import inspect
import pickle

import pytest

import litz.errors as errors
from litz.errors import (
    CacheError,
    CodegenError,
    CompileError,
    CompilerNotFoundError,
    DuplicatePluginError,
    DuplicateRegistrationError,
    ForeignResultError,
    FrozenWeightsError,
    FunctionPlaceError,
    HookSignatureError,
    InvalidOptionError,
    KernelBuildError,
    LitzError,
    LoweringError,
    MissingMemoryError,
    PassOrderError,
    PluginError,
    PluginHookError,
    PluginLoadError,
    StaleEntryError,
    TracedCallError,
    UnknownHookError,
    UnknownOptionError,
    VerifyError,
    compiler_install_hint,
)

EXAMPLES = [
    (LitzError("something broke", where="here", todo="mend it"), ["something broke", "here", "mend it"]),
    (PluginError("p", "it broke"), ["it broke"]),
    (PluginLoadError("p", "litz-p 1.0", ImportError("no x")), ["'p'", "litz-p 1.0", "ImportError: no x", "PLUGINS=p"]),
    (DuplicatePluginError("p", ["litz-a 1", "litz-b 2"]), ["'p'", "litz-a 1", "litz-b 2", "LITZ_DISABLE_PLUGINS=p"]),
    (UnknownHookError("p", "litz_sleect", ["litz_select"]), ["litz_sleect", "did you mean 'litz_select'"]),
    (HookSignatureError("p", "litz_x", "has a parameter 'y'", spec="litz_x(z)"), ["'p'", "parameter 'y'", "litz_x(z)"]),
    (PluginHookError("p", "litz_x", ValueError("no")), ["'p'", "litz_x", "ValueError: no", "on_plugin_error"]),
    (PluginHookError("core", "litz_x", ValueError("no"), builtin=True), ["bug in litz", "fallback"]),
    (PassOrderError("a waits for b", ["a", "b"], ["p", "q"]), ["a waits for b", "p, q", "after"]),
    (DuplicateRegistrationError("lowering of", "aten.add", ["p", "q"]), ["'p' and 'q'", "aten.add", "PLUGINS=q"]),
    (UnknownOptionError("fusoin", ["fusion"]), ["'fusoin'", "did you mean 'fusion'"]),
    (UnknownOptionError("x.y", ["fusion"], missing_plugin="x"), ["install the plugin 'x'"]),
    (UnknownOptionError("qqq", ["fusion"]), ["litz options"]),
    (InvalidOptionError("debug", 3, "True or False"), ["'debug'", "3", "True or False"]),
    (StaleEntryError("g0", "its guards differ"), ["g0", "its guards differ", "litz cache clear", "fingerprint"]),
    (CompilerNotFoundError(["g++"]), ["g++", compiler_install_hint(), "litz doctor"]),
    (
        KernelBuildError("k1", ["g++", "a b.cpp"], "x" * 9000 + "error: no", "/tmp/k1.cpp"),
        ["k1", "'a b.cpp'", "error: no"],
    ),
    (KernelBuildError("k1", "g++ a.cpp", ""), ["k1", "said nothing"]),
    (
        CompileError("graph0", "schedule", KeyError("s0")),
        ["graph0", "stage schedule", "KeyError: 's0'", "bug", "eager"],
    ),
    (LoweringError("aten.add.Tensor", "add_3", "no such dtype"), ["aten.add.Tensor", "add_3", "no such dtype", "bug"]),
    (PluginHookError("p", "lowering of aten.add", "no", node="add_3"), ["node add_3", "LITZ_DISABLE_PLUGINS=p"]),
    (CodegenError("k1", "no such device", device="xpu"), ["k1", "no such device", "xpu"]),
    (VerifyError("program", "graph0", ["one", "two"]), ["one", "two"]),
    (VerifyError("program", "graph0", "one"), ["program 'graph0' breaks rules", "one"]),
    (CacheError("not writable", path="/x"), ["not writable", "/x", "LITZ_CACHE_DIR"]),
    (MissingMemoryError("x", "cpu", 0), ["its storage was freed", "input x, on cpu", "0 bytes", "unshard"]),
    (TracedCallError("FakeTensorMode"), ["a backward, or a package", "FakeTensorMode", "under none"]),
    (MissingMemoryError("x", "meta", 80), ["meta device"]),
    (ForeignResultError("my.op", "a list", "a tensor"), ["my.op returned a list", "fake kernel", "opcheck"]),
    (FunctionPlaceError("f has no name", todo="name it"), ["f has no name", "the functions of a graph", "name it"]),
    (FrozenWeightsError("graph0", "conv.weight"), ["conv.weight", "was written", "graph0", "torch._dynamo.reset()"]),
    (FrozenWeightsError("graph0", "conv.weight", replaced=True), ["conv.weight is another tensor"]),
]


@pytest.mark.parametrize(
    ("error", "parts"), EXAMPLES, ids=lambda v: type(v).__name__ if isinstance(v, LitzError) else ""
)
def test_message_says_what_is_needed(error, parts):
    text = str(error)
    assert all(part in text for part in parts), text
    assert isinstance(error, LitzError)


@pytest.mark.parametrize(
    ("error", "parts"), EXAMPLES, ids=lambda v: type(v).__name__ if isinstance(v, LitzError) else ""
)
def test_errors_survive_pickling(error, parts):
    error.add_note("a note")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert again.__notes__[-1] == "a note"


def test_the_command_that_repeats_it_is_part_of_the_message():
    error = CompileError("graph0", "schedule", "no")
    error.set_reproduction("python a.py")
    again = pickle.loads(pickle.dumps(error))
    assert str(again).endswith("reproduce: python a.py") and again.reproduce == "python a.py"


def test_where_in_the_model_it_is_stands_before_what_to_do():
    error = LoweringError("aten.add", "add_3", "no")
    error.set_reproduction("python a.py")
    error.set_origin("layers.3.mlp.fc1 (model.py:41)")
    lines = [line.split(":")[0].strip() for line in str(error).splitlines()[1:]]
    assert lines == ["from", "where", "to do", "reproduce"]
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.origin == "layers.3.mlp.fc1 (model.py:41)"


def test_every_error_is_covered_here():
    classes = {c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, LitzError)}
    assert classes == {type(error) for error, _ in EXAMPLES}


def test_a_long_stderr_is_shown_by_its_end_and_kept_whole():
    error = KernelBuildError("k1", "g++", "first\n" + "x" * 9000 + "\nlast")
    assert len(str(error)) < 3000 and "last" in str(error)
    assert error.stderr.startswith("first")


def test_a_plain_exception_with_an_unpicklable_cause_survives():
    try:
        try:
            raise RuntimeError(lambda: None)
        except RuntimeError as cause:
            raise PluginHookError("p", "litz_x", cause) from cause
    except PluginHookError as error:
        assert "RuntimeError" in pickle.loads(pickle.dumps(error)).cause
