"""Numbers of litz's modules that are no figures of a device, by why they are none: constants, and numbers in functions.

In a line: a module's name, without its folder, and its constants, or its functions with their numbers. `test_figures`
asks for a line here, or for an entry in a data file (`litz/target/figures/`), for each constant that is made of
numbers, and for each number by which a function compares, multiplies, limits or chooses.
"""

from __future__ import annotations

from collections.abc import Mapping

CONSTANTS: Mapping[str, str] = {
    "of an ISA, or of hardware of a kind: lines, warps, registers, tensor cores' least tile": """
        cpp_compiler: WIDEST
        philox: _VARIANTS
        blocks: WIDE
        arena: ALIGNMENT
        cover: LEAST
        configs: THREAD_REGISTERS
        convolution: LEAST_CHANNELS
        counters: WORDS
        describe: _OLDEST
        jam: MOST
        jammed: LANES
        lanes: MOST_LANES LEAST_PLACES
        many_rows: STEP_BYTES
        masked_call: LEAST_ROWS
        pointwise: OWNED
        max_pooling: GATHERED
        rows: MOST_ROWS FEW ALIGNED
        rows_loop: GAP
        scales: BLOCK
        segments: LEAST_SECTORS
        settings: MOST_WARPS
        print: APART
        shape: VECTOR
        tile_shape: SIXTEEN_WARPS THREADS
        tiles: LEAST
        offer: LEAST_QUERIES
    """,
    "of a format or an interface: versions, types, argument positions, torch's numbers": """
        builders: CALLER
        __init__: _PARTS
        adaptive_pooling: LOWERINGS
        aot: _STRIDED
        average_pooling: LOWERINGS
        flex_attention: NO_BLOCKS
        flex_attention_backward: RESULTS
        bias_gradients: GRADIENT BIAS
        wide_products: OPERANDS
        fold_constants: _FILLS
        contractions: _FORMULAS
        cpp_compiler: VERSION_SECONDS
        cuda_driver: _INVALID_CONTEXT _MAX_DYNAMIC_SHARED _DEFAULT_SHARED
        decompositions: NEAREST
        dialect: _OPS NARROW
        dtypes: _ROWS
        refusals: _NUMBERS _VALUES
        rows_loop: MEASURED
        foreach: _PER_TENSOR
        graph_entry: FORMAT
        indices: LIMIT
        inputs: LOWEST
        kept: VERSION
        kernel_plan: PIECES
        eager_layouts: _DECIDING
        layout_needs: _STRICTNESS
        max_pooling: LOWERINGS
        padding: LOWERINGS
        saved_positions: TYPES BELOW
        ops: _ROWS
        pattern: BUFFERS LOOPS
        pointwise: _SAME_UNARY
        pool: SMALLEST
        moves: MOVES
        prelude: _INSTRUCTIONS _SCALAR _SIMD _VECTORS
        random: _SEED_ARGS
        reductions: _first _second ROWS
        refusals: _NUMBERS _VALUES
        resampling: LOWERINGS
        rules: RESAMPLING
        unpooling: LOWERINGS
        report: JSON_VERSION
        sampling: BICUBIC ZEROS REFLECTION
        scales: _ALL _ROW
        sizes: INT32
        size_readers: _POOL CONVOLUTION_RESULTS READERS
        spelling: SMALL
        stored: ALIGNMENT
        sum_scatters: _ZEROS
        bytes: _CODES
        float8: _BF16 _F16 _BYTES _WORDS _CODES
        trust: _LINKS
        umask: OWNER _within _before
        launch: _STAND_INS
        window_starts: POOLS
        worker: WARM
    """,
    "mathematical: powers, polynomials, signs, loop variables, random generators": """
        arithmetic: EXACT
        masks: _AT_MOST _AT_LEAST
        comparisons: TURNS
        bodies: BATCH HEAD QUERY KEY
        print: UNIT NOTHING_SEEN
        index: ZERO ONE
        intervals: LARGEST _DTYPES SPANS
        masks: LEAST_SCALED
        near: TANH_ERROR LEAST
        philox: _KEY_A _KEY_B _ROUND_A _ROUND_B _MASK UNIFORM_SCALE
        probes: I R
        promises: HUGE
        random: _MIX
        lines: LOG2E
        spread: ZEROS
        resampling: NEAR FAR
        times: WHOLE NONE
    """,
    "a limit of compile time or of a search: terms, nodes, ways, cases": """
        candidates: PRICES MOST_PRICES SEGMENTS SHARES MOST_REPAIRS
        taps: MAX_UNROLLED
        beside: MOST WHOLE
        broadcast: MOST_FACTORS MOST_NODES
        comparisons: MOST_STEPS
        complexity: MAX_LOADS MAX_NODES MAX_INDEX MAX_VIEW MAX_INDICES MEMO
        configs: SPLITS PER_TILE
        coverage: MOST_POINTS
        estimate: ALIKE
        fusion: NEIGHBOURS
        index: MOST_STEPS
        inline: MAX_GROWTH
        intervals: MOST_QUOTIENTS MOST_NESTED
        joining: MAX_JOINED
        padding: MAX_PLACES
        print: MOST_UNROLLED
        memory: LONGEST
        no_ops: FAR
        reduction: UNROLL
        segments: MAX_SEGMENTS MOST_TURNS
        settings: MOST_ELEMENTS MOST_STAGES LONGEST EACH WALKED
        size_cases: MOST_CASES
        split: OTHERS
        written_out: MOST_LOOPS
    """,
    "what a kernel's body may hold before registers spill, on any GPU: nodes, loads, heads": """
        decode: MOST_ROWS MOST_WIDTH
        convolution: MOST_TAPS
        epilogue: MOST_USERS MOST_NODES MOST_LOADS
        rows_loop: AT_A_TIME
        few_terms: MOST_TERMS MOST_PRODUCTS
        in_place: MOST_NODES MOST_LOADS
        joined: MOST_COLUMNS MOST_VALUES
        lanes: LEAST_BLOCK
        lines: SHORT
        print: HELD
        prologue: MOST_NODES MOST_LOADS
        rows: MOST_TOGETHER
        rows_loop: MOST_SUMS
        segments: MOST
        operation: WIDEST
        written_out: MOST_NODES
    """,
    "what decides results or how exact they are: how sums are cut up, tolerances": """
        halves: BLOCK
        library: NEAR
        reduction: ROW_CHUNK COLUMN_CHUNK PART_CHUNK
    """,
    "memory and files that litz may hold: a promise that no device changes": """
        recordings: MOST_RECORDINGS MOST_SEEN MOST_ATTEMPTS
        aliasing: REMEMBERED LARGEST_MAP
        aot_cache: LARGEST
        arena: LARGEST MOST FEWEST
        beside: NEAR SLACK LEAST
        canonical: LARGEST_CONSTANTS
        freezing: GROWTH SMALL
        fusion: WAITING WAITING_BYTES
        garbage: NEVER _within
        graph_entry: LARGEST_OBJECTS
        in_place: LEAST_BYTES
        saved_memory: LEAST_BYTES MOST_SHARE
        limit: MOST_LINES FREE
        manifest: LARGEST
        memory: SLACK LARGEST_SHARE
        saved_positions: LEAST_BYTES
        order: SMALL
        sources: LARGEST_SOURCES
        stores: LARGEST
        place_constants: MOST_BYTES
    """,
    "seconds and tries of waiting for other processes and files": """
        background: GRACE
        builders: PROGRAM_SECONDS END_SECONDS
        disk: PATIENCE TRIES
        limit: LEFT_SECONDS
        compile: PARSES
        worker: WATCH_SECONDS
        workers: START_SECONDS BUILD_SECONDS IDLE_SECONDS LOSSES
    """,
    "what a person is shown: lines, letters, rows": """
        choose: SHOWN
        operations: MODULES PLACES
        said: NAMED
    """,
    "how litz measures: repetitions, margins of noise": """
        probes: ROWS LONG SHARED
        launch: WARM_UP RUNS
    """,
    "how torch's own kernels and libraries work: tiles, launches, where their bugs are": """
        contractions: TILE SPLIT
        operation: SCORE_BYTES SCORE_LAUNCHES BACKWARD_SCORE_BYTES BACKWARD_SCORE_LAUNCHES
        distances: MATRIX_PRODUCT_FROM
        masked_call: LIBRARY_TILE
        processor: PASSES
        tiles: LEAST_SECOND
        written_attention: LEAST LEAST_RATIO ALIGNMENT LEAST_UNALIGNED WIDEST
    """,
    "a coarse choice that no device was asked for": """
        jam: FEW USUAL CHUNK
        processor: ROWS KEYS
        rows: INSTRUCTIONS
        tiling: SHORT_ROW TABLED_ROWS
        turned: MOST_LANES
        rows_loop: ROUNDING
        segments: DIVISION
        sum_products: MANY LITTLE
        tiling: SMALL_REDUCTION TINY TINY_SEVERAL EXPENSIVE USUAL
        units: UNKNOWN_SIZE
    """,
}

WHOLE_MODULES: Mapping[str, str] = {
    "what they compute is a format or a polynomial": "bytes float8 helpers philox dtypes",
    "made-up inputs that try a compiler": "probes",
}
"""Modules all of whose functions' numbers are of one kind."""

LITERALS: Mapping[str, str] = {
    "of an ISA, or of hardware of a kind: lines, warps, vectors, alignment": """
        build: expected_variant=16 command=256
        column: tile_size=16
        turned: __init__=16
        decode: choose_split=16
        inputs: plan_inputs=16
        configs: _wasteful=16 all_configs=16
        library: _is_aligned=16
        offer: _within_blocks=16
        launch: kind_of=16
        wrapper_support: aligned=16
        tiles: copies=64
        configs: estimate=256,32768
    """,
    "of a format or an interface: versions, modes, bits, letters": """
        aot_cache: _make=504,448
        configs: misfit=1024
        cuda_driver: make_fixed_launch=15
        half_tile: _nibble=15
        intervals: _combined=64
        libraries: problem_of=64,32,28,54,42,56
        trust: mode=509,493
        units: size_text=1024
    """,
    "mathematical: what float32 holds, roundings, places where functions are compared": """
        arithmetic: change=1e-30,1e+30 _times=1e-30,1e+30 _factor=0.0001,10000.0
        operation: contraction=2.5
        coverage: _points=1e-09
        library: _named=1.7 _places=0.0137
        resampling: touched=1e-12
        written_out: _scaled=1e-30,1e+30
    """,
    "what a person is shown, or why a decision was taken": """
        artifacts: keep=40
        fusion: _why_slower=1.5
        steps: _launch=80
    """,
    "how torch's own kernels, Triton and libraries work": """
        tiles: shared_bytes=2048
        configs: shared_bytes=32768,1024
        instructions: instructions=20
        ops: _fmod=0.9
    """,
    "what a kernel's body may hold before registers spill, on any GPU": """
        tiles: effort=64
        columns: _lanes=64,16 column_blocks=16,32,64,256,512,1024 widest_block=32,64 _few_warps=32,64
        decode: choose_split=128,256
        tiling: _elements_per_thread=400,24
    """,
    "a coarse choice that no device was asked for": """
        column: tile_size=128
        describe: _by_row=0.9
        pointwise: _write_owned=64
        turned: __init__=64,32
        rows: _config=128,64,32,16
        tile_shape: warps_for=2048,16,32
        tiling: _pointwise=128,64 _rows=128 _chain=16 _two_axes=16,64,4096,128,1024 _reduction=512 _gathers_across=16
        tiling: _rows_alike=1024,256,512 _row_blocks=1024,256,16,64 _pass=256,512,16,32 _reduction_mode=64
    """,
}
"""Numbers in functions: `function=number,number`."""
