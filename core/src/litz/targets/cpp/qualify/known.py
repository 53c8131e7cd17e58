"""The right bits of every probe whose results are exact, as `litz.targets.cpp.qualify.verdict.bits_of` digests them.

The bits are written down, and not computed when a compiler is tested: torch's own kernels differ between processors
(its square root of float64 is not the nearest number everywhere). A test holds them against the interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping

KNOWN: Mapping[str, str] = {
    "vector loops 1": "e75e98c75e2eb8dd",
    "threads 1": "99a65e2b2967d2b4",
    "float16 1": "2b8b0c0fa6ac75a7",
    "bfloat16 1": "9dd0fff497f9b26a",
    "float16 blocks 1": "a607cd7548b823fb",
    "float8 1": "230edd1fc98fbddc",
    "masked loads 1": "4b55da6491ccb40c",
    "masked loads 2": "d711f76bd738fabb",
    "masked loads 3": "4eefc54e604f661c",
    "masked loads 4": "9e8d8b4c56597ec5",
    "masked loads 5": "26df50d1f4241c7c",
    "masked stores 1": "a2866a0508e239eb",
    "selections 1": "e84249ca40ce3ece",
    "unrolled loops 1": "cf463990098f53d5",
    "unrolled loops 2": "dfa9c6df88c67b31",
    "unrolled loops 3": "2f81c4d8814ea52f",
    "steps apart 1": "95b329a3b4c38417",
    "tiles 1": "5c80470a9f83be02",
    "tiles 2": "41d8763d2ae60536",
    "sums 1": "2d9b4dcbc7afe411",
    "extremes 1": "723b08343820d8a9",
    "tests 1": "9fc603a9878adaa8",
    "positions 1": "410abe4167a9fef2",
    "rows together 1": "7ad4782882e7421c",
    "rows together 2": "9fff6352cb9d841d",
    "rows together 3": "3baaafc104e50743",
    "rows together 4": "d0e222068ac6d255",
    "columns 1": "8669b76ad91a44e1",
    "scans 1": "80dc259c906cd60f",
    "scans 2": "c8e59fd94fc4a069",
    "scalar math 1": "b40f1e5005d38b32",
    "roundings 1": "7a9ae9f69a38642d",
    "special values 1": "8e367b649c3eed59",
    "integers 1": "301d777a4c31abd9",
    "divisions 1": "bfeb7f3637e5f145",
    "shifts 1": "d297e66f3888df52",
    "bits 1": "1c5d51ec130727fd",
    "atomics 1": "34e82cd09321874d",
    "combinations 1": "ed9549dd63ca4b35",
    "bounds 1": "8ac05c8a0b537d0f",
    "random numbers 1": "6648c43bf9eecb0e",
}
