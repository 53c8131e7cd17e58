"""A test kit for plugin authors.

The kit needs neither litz nor torch, so that a plugin's own tests take milliseconds::

    import my_plugin
    from litz_plugins.testing import check_plugin, make_test_plugins

    def test_plugin_is_well_formed():
        check_plugin(my_plugin)

    def test_pass():
        harness = make_test_plugins(my_plugin, my_plugin__level=2)
        assert harness.run_passes("program", program) == expected
        assert harness.decisions[0].chosen == "fused"

`check_conformance` runs all that a plugin registers through the compiler and against eager. `check_conformance` alone
needs the dist litz-testing, and torch and litz with it. `litz_plugins.pytest_plugin` offers the kit as fixtures.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from litz_plugins.errors import LitzError, nearest
from litz_plugins.manager import Plugins, make_plugins
from litz_plugins.nouns import Noun, Operation, Program
from litz_plugins.records import Decision, Estimate, Exporter, Pass, Stage, Target, TargetSpec

T = TypeVar("T")


class PluginCheckError(LitzError):
    """`check_plugin` found faults; ``problems`` has one sentence for each."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        self.name = name
        self.problems = tuple(problems)
        super().__init__(
            f"plugin {name!r} has {len(self.problems)} fault(s):\n" + "\n".join(f"- {p}" for p in problems)
        )


class FakeOptions:
    """A stand-in for litz's Options: the plugin's options at their defaults, and whatever the test sets."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        # Core's options are attributes with underscores for dots; a test sets them as it likes.
        for key, value in self.__dict__.get("_values", {}).items():
            if key.replace(".", "_") == name:
                return value
        raise AttributeError(f"the test sets no option {name!r}; pass it to make_test_plugins")

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the value of an option, `default` if the test has not set it."""
        return self._values.get(name, default)

    def key(self) -> str:
        """Returns all options and values as one line of JSON, for keys of caches."""
        return json.dumps({k: repr(v) for k, v in sorted(self._values.items())})


@dataclass
class PluginHarness:
    """Plugins without litz around them. ``decisions`` fills up with what passes record."""

    plugins: Plugins
    options: FakeOptions
    name: str
    decisions: list[Decision] = field(default_factory=list)

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Returns every pass, in running order."""
        return self.plugins.passes(self.options)

    def run_passes(self, stage: Stage, noun: Noun) -> Noun:
        """Returns what the stage's passes make of ``noun``, which is anything that they accept."""
        return self.plugins.run_passes(stage, noun, self.options, note=self.decisions.append)

    def estimate(self, operation: Operation, target: Target | str = "cpu", program: Program = None) -> Estimate | None:
        """Returns what the plugins say of an operation on a target, or on a type of device."""
        target = Target(target) if isinstance(target, str) else target
        return self.plugins.estimate_runtime(operation, target, program)


@dataclass(frozen=True)
class PluginCheck:
    """The names of what `check_plugin` found in a well-formed plugin."""

    hooks: tuple[str, ...]
    options: tuple[str, ...]
    passes: tuple[str, ...]
    templates: tuple[str, ...]
    devices: tuple[str, ...]


def make_test_plugins(
    plugin: object,
    *,
    name: str = "",
    builtins: Sequence[tuple[str, object]] = (),
    options: Mapping[str, Any] | None = None,
    **more_options: Any,
) -> PluginHarness:
    """Loads one plugin, and nothing that happens to be installed.

    plugin: the module or object with the hooks. name: as the entry point would name it; by default the module's last
    name. builtins: (name, object) of what should stand in for core. options: values by name ("my_plugin.level", or a
    core option that the plugin reads); a keyword ``my_plugin__level=2`` says the same.

    Errors: those of `make_plugins`; KeyError for an option of this plugin that it does not have.
    """
    name = name or name_of(plugin)
    plugins = make_plugins(builtins, extra=[(name, plugin)], entry_points=())
    values = {spec.name: spec.default for spec in plugins.option_specs()}
    given = {**(options or {}), **{key.replace("__", "."): value for key, value in more_options.items()}}
    for key in given:
        if key.startswith(f"{name}.") and key not in values:
            near = nearest(key, values)
            raise KeyError(f"plugin {name!r} has no option {key!r}" + (f"; did you mean {near!r}?" if near else ""))
    return PluginHarness(plugins, FakeOptions(values | given), name)


def check_plugin(plugin: object, *, name: str = "", options: Mapping[str, Any] | None = None) -> PluginCheck:
    """Loads a plugin, asks each of its registering hooks, and checks what they return.

    options: values that make the plugin offer all it has, if the defaults do not. Errors: PluginCheckError with the
    first fault of each hook; the errors of `make_plugins` and of options, when it gets no further than that.
    """
    harness = make_test_plugins(plugin, name=name, options=options)
    plugins, problems = harness.plugins, list[str]()
    info = next(row for row in plugins.listing(harness.options) if row.name == harness.name)
    if not info.hooks:
        problems.append("it implements no hook; mark functions with @hookimpl")

    def asked(ask: Callable[[], Iterable[T]]) -> Iterable[T]:
        """Returns what a hook registers; nothing, and adds a problem, where it must not be."""
        try:
            return ask()
        except LitzError as error:
            problems.append(error.what)
            return ()

    for pass_ in asked(lambda: harness.passes):
        problems += _check_callable(f"pass {pass_.name!r}", pass_.run, ("noun", "context"))
    templates = asked(lambda: plugins.templates(harness.options))
    for template in templates:
        problems += _check_callable(
            f"template {template.name!r}", template.make_choices, ("operation", "context"), "make_choices"
        )
    for register in (plugins.decompositions, plugins.lowerings, plugins.layout_needs, plugins.commands):
        asked(register)
    devices = dict(asked(lambda: plugins.targets(harness.options).items()))
    for device, spec in devices.items():
        problems += _check_callable(f"target {device!r}", spec.describe, ("device", "options"), "describe")
        if spec.qualify is not None:
            problems += _check_callable(f"target {device!r}", spec.qualify, ("constructs", "context"), "qualify")
        for attribute in ("language", "generate", "load"):
            if not hasattr(spec.codegen, attribute):
                problems.append(f"its code generator for {device!r} lacks {attribute!r}")
        exporters = asked(functools.partial(_exporters, plugins, spec, harness.options))
        for exporter in (one for one in exporters if not _is_there(one.module)):
            problems.append(f"its exporter for {device!r} is the module {exporter.module}, which is not there")
    if problems:
        raise PluginCheckError(harness.name, problems)
    return PluginCheck(
        info.hooks,
        info.options,
        info.passes,
        tuple(t.name for t in templates),
        tuple(devices),
    )


def _exporters(plugins: Plugins, spec: TargetSpec, options: FakeOptions) -> list[Exporter]:
    """Returns the exporter of a target's packages in a list, empty where there is none."""
    found = plugins.select_exporter(spec, None, options)
    return [] if found is None else [found]


def _is_there(module: str) -> bool:
    """Returns whether a module can be found; it is not run, as it may need litz."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _check_callable(what: str, function: Any, arguments: tuple[str, ...], attribute: str = "run") -> list[str]:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return [f"{what}: {attribute} must be callable as {attribute}({', '.join(arguments)})"]
    except ValueError:  # a builtin without a signature
        return []
    return []


def check_conformance(plugin: object, **how: Any) -> Any:
    """Runs all that a plugin registers against eager, judged by float64: each lowering and decomposition on samples
    made from the op's schema, each pass on small programs, each choice that a template offers taken.

    Returns a `litz_testing.plugin_kit.Conformance`, which prints. how: as `litz_testing.plugin_kit.check_conformance`
    documents them (name, options, samples, examples, ops, builds, may_be_untried). Errors: ConformanceError with all
    that is wrong, and with each pass and template that no trial used; those of `check_plugin`; ModuleNotFoundError
    without litz-testing.
    """
    __tracebackhide__ = True  # pytest shows the test and the error
    try:
        kit = importlib.import_module("litz_testing.plugin_kit")  # by name: litz_plugins imports neither litz nor torch
    except ModuleNotFoundError as error:
        todo = "`pip install ./testing` in a checkout of litz installs it"
        raise ModuleNotFoundError(f"check_conformance needs litz-testing: {todo}") from error
    return kit.check_conformance(plugin, **how)


def name_of(plugin: object) -> str:
    """Returns the name of a plugin in tests that give none: its module's or class's, in lower case."""
    name = getattr(plugin, "__name__", None) or type(plugin).__name__
    return str(name).rpartition(".")[2].removeprefix("litz_").lower()


__all__ = [
    "FakeOptions",
    "PluginCheck",
    "PluginCheckError",
    "PluginHarness",
    "check_conformance",
    "check_plugin",
    "make_test_plugins",
    "name_of",
]
