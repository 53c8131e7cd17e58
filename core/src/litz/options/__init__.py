"""Options: what a compile was asked for. In: arguments, the environment, a mode. Out: one frozen `Options`.

`table` has the options and is the only file of litz that reads the environment; `inductor_names` knows what
TorchInductor calls them.
"""

# ruff: noqa: F401 (what is imported here is what the folder has to offer)

from .table import (
    MODES,
    OptionRow,
    Options,
    PluginSettings,
    core_options,
    default_cache_dir,
    distributed_rank,
    hide_gpus,
    local_ranks,
    make_options,
    make_plugin_settings,
    plugin_option_rows,
    visible_cuda_devices,
    without_gpus,
)
