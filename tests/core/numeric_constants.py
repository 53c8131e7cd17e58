"""Numeric constants of litz's modules that are no figures of a device, by why they are none.

In a line: a module's name, without its folder, and its constants. `test_figures` asks for a line here, or for an entry
in a data file (`litz/target/figures/`), for each constant that is made of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

CONSTANTS: Mapping[str, str] = {
    "of an ISA, or of hardware of a kind: lines, warps, registers, tensor cores' least tile": """
        apart: WIDE
        arena: ALIGNMENT
        broadcast: LEAST
        column: LINE
        configs: THREAD_REGISTERS
        convolution: LEAST_CHANNELS
        counters: WORDS
        describe: _OLDEST
        devices: LINE SECTOR
        frame: VECTOR
        jam: MOST
        jammed: LANES
        lanes: MOST_LANES LEAST_PLACES
        many_rows: STEP_BYTES
        masked_call: LEAST_ROWS
        pointwise: OWNED
        pooling: GATHERED
        rows: MOST_ROWS FEW ALIGNED
        rows_loop: GAP
        scales: BLOCK
        segments: LEAST_BYTES
        settings: MOST_WARPS
        tile_shape: SIXTEEN_WARPS
        tiles: LEAST
        warps: THREADS
        written_offer: LEAST_QUERIES
    """,
    "of a format or an interface: versions, types, argument positions, torch's numbers": """
        aot: _STRIDED
        flex_attention: NO_BLOCKS
        flex_attention_backward: RESULTS
        bias_gradients: GRADIENT BIAS
        calibration: VERSION
        constants: _FILLS
        contractions: _FORMULAS
        cpp_compiler: VERSION_SECONDS
        cuda_driver: _INVALID_CONTEXT _MAX_DYNAMIC_SHARED _DEFAULT_SHARED
        dialect: _OPS NARROW
        doctor: _OLDEST_TORCH
        dtypes: _ROWS
        few_rows: MEASURED
        foreach: _PER_TENSOR
        graph_entry: FORMAT
        groups: _BYTES
        indices: LIMIT
        inputs: LOWEST
        kept: VERSION
        kernel_plan: PIECES
        layout_needs: _STRICTNESS
        saved_positions: TYPES BELOW
        ops: _ROWS
        package: FORMAT VERSION
        plugin_checks: TOLERANCE
        pointwise: _SAME_UNARY
        pool: SMALLEST
        prelude: _SCALAR PIECES
        random: _SEED_ARGS
        reductions: _first _second ROWS
        report: JSON_VERSION
        rules: NEAREST
        sampling: BICUBIC ZEROS REFLECTION
        scales: _ALL _ROW
        sizes: INT32
        size_readers: _POOL _READERS CONVOLUTION_RESULTS
        spelling: SMALL
        stored: ALIGNMENT
        bytes: _OF_NIBBLES_BF16 _OF_NIBBLES_F16 _OF_SIGNED_BF16 _OF_UNSIGNED_BF16 _OF_SIGNED_F16 _OF_UNSIGNED_F16
        float8: _BF16 _F16 _BYTES _WORDS _E4M3FN_BF16 _E4M3FN_F16 _E4M3FNUZ_BF16 _E4M3FNUZ_F16 _E5M2FNUZ_BF16
        float8: _WORD_E4M3FN_BF16 _WORD_E4M3FN_F16 _WORD_E4M3FNUZ_BF16 _WORD_E4M3FNUZ_F16 _WORD_E5M2FNUZ_BF16
        interpret: libdevice
        trust: _LINKS
        umask: OWNER _within _before
        user_kernels: _STAND_INS
        window_starts: POOLS
        worker: WARM
    """,
    "mathematical: powers, polynomials, signs, loop variables, random generators": """
        arithmetic: EXACT
        backward: LOG2_E
        bounds: _AT_MOST _AT_LEAST
        comparisons: TURNS
        forward: LOG2_E NOTHING_SEEN
        half_tile: UNIT
        index: ZERO ONE
        intervals: LARGEST _DTYPES SPANS
        least: LEAST_SCALED
        near: TANH_ERROR LEAST
        philox: _KEY_A _KEY_B _ROUND_A _ROUND_B _MASK UNIFORM_SCALE
        plan: B H Q K
        probes: I R
        promises: HUGE
        random: _MIX
        score_tile: BATCH HEAD QUERY KEY
        split: LOG2E
        upsample: NEAR FAR
        written_out: B H Q K AT
    """,
    "a limit of compile time or of a search: terms, nodes, ways, cases": """
        access: MAX_UNROLLED
        beside: MOST
        broadcast: MOST_FACTORS MOST_NODES
        comparisons: MOST_STEPS
        complexity: MAX_LOADS MAX_NODES MAX_INDEX MAX_VIEW MAX_INDICES MEMO
        configs: _TILES _LONG_K SPLITS PER_TILE
        coverage: MOST_POINTS
        fusion: NEIGHBOURS
        index: MOST_STEPS
        inline: MAX_GROWTH
        intervals: MOST_QUOTIENTS MOST_NESTED
        joining: MAX_JOINED MAX_PLACES
        kernel: MOST_UNROLLED
        many_rows: CANDIDATES UNALIGNED_CANDIDATES
        memory: LONGEST
        no_ops: FAR
        reduction: UNROLL
        script: MAX_LISTED
        segments: MAX_SEGMENTS
        settings: MOST_ELEMENTS MOST_STAGES LONGEST EACH WALKED
        size_cases: MOST_CASES
        split: OTHERS
        written_out: MOST_LOOPS
    """,
    "what a kernel's body may hold before registers spill, on any GPU: nodes, loads, heads": """
        flex_attention: MOST_WIDE
        decode: MOST_ROWS MOST_WIDTH
        depthwise: MOST_TAPS
        epilogue: MOST_USERS MOST_NODES MOST_LOADS
        few_rows: AT_A_TIME
        few_terms: MOST_TERMS MOST_PRODUCTS
        in_place: MOST_NODES MOST_LOADS
        joined: MOST_COLUMNS
        lanes: LEAST_BLOCK
        prologue: MOST_NODES MOST_LOADS
        row_factor: MOST_VALUES
        rows: MOST_TOGETHER
        rows_loop: MOST_SUMS
        score_tile: SHORT
        segments: MOST
        split: HELD
        written_offer: WIDEST
        written_out: MOST_NODES
    """,
    "what decides results or how exact they are: how sums are cut up, tolerances": """
        halves: BLOCK
        library: NEAR
        reduction: ROW_CHUNK BLOCK_CHUNK COLUMN_CHUNK PART_CHUNK
    """,
    "memory and files that litz may hold: a promise that no device changes": """
        backend: LARGE_MEMO
        aliasing: REMEMBERED LARGEST_MAP
        aot_cache: LARGEST
        arena: LARGEST MOST FEWEST
        artifacts: MOST_BYTES
        beside: NEAR SLACK LEAST
        canonical: LARGEST_CONSTANTS
        doctor: _LITTLE_SPACE
        fingerprints: LARGEST_SOURCES
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
        package: LARGEST_MANIFEST MOST_ARGUMENTS
        peers: MOST_BYTES LARGEST
        place_constants: MOST_BYTES
    """,
    "seconds and tries of waiting for other processes and files": """
        background: GRACE
        builders: PROGRAM_SECONDS LOOK_SECONDS END_SECONDS
        disk: PATIENCE TRIES
        limit: LEFT_SECONDS
        peers: SECONDS POLL_S
        progress: PATIENCE PAUSE
        compile: PARSES
        worker: WATCH_SECONDS
        workers: START_SECONDS BUILD_SECONDS IDLE_SECONDS LOSSES
    """,
    "what a person is shown: lines, letters, rows": """
        write: NO_PAGES
        changes: MOST
        contractions: MANY_WAYS
        explain: DETAILED
        groups: FEW
        operations: MODULES PLACES
        plugin_runs: WIDTH
        text: NAME WORD MANY
        words: NAMED
    """,
    "how litz measures: repetitions, margins of noise": """
        probes: ROWS LONG SHARED
        user_kernels: WARM_UP RUNS
    """,
    "how torch's own kernels and libraries work: tiles, launches, where their bugs are": """
        backward_operation: BACKWARD_SCORE_BYTES BACKWARD_SCORE_LAUNCHES
        contractions: TILE SPLIT
        operation: SCORE_BYTES SCORE_LAUNCHES
        distances: MATRIX_PRODUCT_FROM
        masked_call: LIBRARY_TILE
        processor: PASSES
        tiles: LEAST_SECOND
        written_attention: LEAST LEAST_RATIO ALIGNMENT LEAST_UNALIGNED WIDEST
    """,
    "measured, of the machine that compiles: not of a device that code is made for": """
        workers: FEWEST
    """,
    "a coarse choice that no device was asked for": """
        jam: FEW USUAL CHUNK
        processor: ROWS KEYS
        rows: INSTRUCTIONS
        rows_loop: ROUNDING
        sum_products: MANY LITTLE
        tiling: SMALL_REDUCTION TINY TINY_SEVERAL EXPENSIVE USUAL
        units: UNKNOWN_SIZE
        workers: MOST
    """,
}
