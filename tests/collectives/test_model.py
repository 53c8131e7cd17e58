"""The cost of collectives against measurements, physics and NCCL's own limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from litz_collectives.contention import Beside, contention_rows
from litz_collectives.evaluate import errors_of, split_points
from litz_collectives.fit import Curve, Point, Regime, fit_curve, mean_error
from litz_collectives.model import collective_cost
from litz_collectives.nccl import KINDS, Message, candidates, wire_share
from litz_collectives.profile import Profile, builtin_profile, make_profile, parse_profile, read_points, read_profile
from litz_collectives.topology import TopologyError, known_gpu, make_topology

DATA = Path(__file__).parent / "data"
HOSTS = (DATA / "nccl_h200_w2_w4.csv", DATA / "nccl_h200_w2_w3_w4.csv")
MEASURED, LAUNCH = read_points(HOSTS[0])
SECOND, _ = read_points(HOSTS[1])
AGAIN, _ = read_points(DATA / "nccl_h200_w2_w3_w4_again.csv")
MIB = 1 << 20


def percent_off(kind: str, profile: Profile, least: int = 0, points: Mapping[str, list[Point]] = MEASURED) -> float:
    """Mean absolute error in percent over the measured messages of `least` bytes and more."""
    chosen = [point for point in points[kind] if point[0] >= least]
    costs = [collective_cost(Message(kind, size, n), profile).us for size, n, _ in chosen]
    return 100 * sum(abs(us / point[2] - 1) for us, point in zip(costs, chosen, strict=True)) / len(chosen)


@pytest.mark.parametrize("kind", MEASURED)
def test_calibrated_on_both_world_sizes(kind: str) -> None:
    fitted = make_profile(make_topology("H200", "NV18"), MEASURED, LAUNCH, "test")
    assert percent_off(kind, fitted) <= 8
    assert percent_off(kind, fitted, MIB) <= 5


@pytest.mark.parametrize("kind", MEASURED)
def test_built_in(kind: str) -> None:
    """Within 20 % on both hosts; on the second by measurements that the curves were not fitted to."""
    here = Profile(make_topology("H200"))
    assert percent_off(kind, here) <= 20
    assert percent_off(kind, here, points=AGAIN) <= 10
    assert percent_off(kind, here, MIB, AGAIN) <= 7


@pytest.mark.parametrize("kind", MEASURED)
def test_a_world_size_that_was_not_fitted(kind: str) -> None:
    """Fitted to 2 and 4 ranks in one run, scored on another: 8 and 5 % on these, 15 and 10 % on 3 ranks."""
    fitted, _ = split_points(SECOND, [3])
    profile = make_profile(make_topology("H200", "NV18"), {kind: fitted[kind]}, {}, "test")
    for row in errors_of(profile, {kind: AGAIN[kind]}):
        assert row.fitted == (row.world_size != 3) and row.large is not None
        assert row.all <= (0.08 if row.fitted else 0.15)
        assert row.large <= (0.05 if row.fitted else 0.10)


def test_the_interval_of_a_world_size_that_was_not_fitted_holds_in_nine_of_ten() -> None:
    """Each of three world sizes is left out of the fit to one run, and looked for in another: the interval has 90 +- 3
    % of them, small and large alike."""
    held = {"small": [0, 0], "large": [0, 0]}
    for away in (2, 3, 4):
        fitted, _ = split_points(SECOND, [away])
        profile = make_profile(make_topology("H200", "NV18"), fitted, {}, "test")
        for kind, points in AGAIN.items():
            for size, n, us in points:
                if n == away:
                    cost = collective_cost(Message(kind, size, n), profile)
                    counts = held["small" if size < MIB else "large"]
                    counts[0] += cost.low_us <= us <= cost.high_us
                    counts[1] += 1
    assert sum(total for _, total in held.values()) == 252
    for inside, total in held.values():
        assert 0.87 <= inside / total <= 0.93, held


def test_the_interval_grows_with_the_distance_from_what_was_measured() -> None:
    fitted, _ = split_points(SECOND, [4])
    profile = make_profile(make_topology("H200", "NV18", gpus_per_node=72), fitted, {}, "test")
    widths = []
    for n in (3, 4, 8, 16, 72):
        cost = collective_cost(Message("all_gather", 64 * MIB, n), profile)
        widths.append((cost.high_us - cost.us) / cost.us)
    assert widths == sorted(widths) and widths[0] < widths[1] < widths[-1]
    assert profile.unseen_at(MIB) == 0.05 != builtin_profile().unseen_at(MIB)
    assert builtin_profile().unseen_at(MIB - 1) > builtin_profile().unseen_at(MIB)


def test_a_group_across_nodes_of_other_groups_has_one_rail_each() -> None:
    """64 ranks in as many nodes, as FSDP has them across tensor parallel nodes, against 64 ranks in eight nodes."""
    profile = Profile(make_topology("H100"))
    across = collective_cost(Message("all_gather", 256 * MIB, 64, nodes=64), profile)
    together = collective_cost(Message("all_gather", 256 * MIB, 64), profile)
    assert across.us > 4 * together.us, "together the eight GPUs of a node send over eight network cards"
    assert across.us >= 256 * MIB * 63 / 64 / 50e3, "no faster than one card carries it"
    assert "between 64 nodes" in across.why and "NVLS" not in across.algorithm
    assert collective_cost(Message("all_gather", 256 * MIB, 64, nodes=8), profile) == together


def test_rails_that_gpus_share() -> None:
    """Four cards of 50 GB/s for eight GPUs are 25 GB/s each: a GPU alone has a whole card."""
    own = Profile(make_topology("H100"))
    shared = Profile(make_topology("H100", network_gb_s=25.0, rails=4))
    for kind in ("all_gather", "all_to_all"):
        alone = Message(kind, 256 * MIB, 16, nodes=16)
        assert collective_cost(alone, shared).us == pytest.approx(collective_cost(alone, own).us)
        full = Message(kind, 256 * MIB, 64)
        assert collective_cost(full, shared).us > 1.5 * collective_cost(full, own).us
    assert shared.topology.leaving_gb_s(8) == shared.topology.leaving_gb_s(4) == 200.0
    assert parse_profile(shared.dumps(), "test").topology == shared.topology
    with pytest.raises(TopologyError, match="rails"):
        make_topology("H100", rails=-1)


@pytest.mark.parametrize("gpu", ["A100", "H100", "B200", "GB200"])
def test_a_thousand_ranks_are_physical(gpu: str) -> None:
    """No GPU sends faster than its card, nor does a larger job take less; every estimate has an interval around it."""
    profile = Profile(make_topology(gpu))
    per_node, card = profile.topology.gpus_per_node, profile.topology.network_gb_s
    for kind in set(KINDS) - {"permute"}:
        times = []
        for n in (2 * per_node, 8 * per_node, 1024):
            cost = collective_cost(Message(kind, 256 * MIB, n), profile)
            assert 0 < cost.low_us < cost.us < cost.high_us
            outside = (n - per_node) / n if kind == "all_to_all" else 1 / per_node
            assert cost.us * card * 1e3 > 256 * MIB * outside * 0.9, (kind, n)
            times.append(cost.us)
        assert times == sorted(times), (kind, times)


@pytest.mark.parametrize("kind", MEASURED)
def test_sizes_that_were_not_fitted(kind: str) -> None:
    """Every other size is left out of the fit, and predicted."""
    sizes = sorted({size for size, _, _ in MEASURED[kind]})
    curve = fit_curve(kind, [point for point in MEASURED[kind] if point[0] in sizes[::2]])
    left_out = [point for point in MEASURED[kind] if point[0] in sizes[1::2] and point[2] < 1e4]
    regular = [point for point in left_out if point[:2] != (65536, 4) or kind != "all_to_all"]  # a disturbed one
    assert mean_error(curve, regular) <= 0.10


@pytest.mark.parametrize("kind", MEASURED)
def test_a_node_of_eight_is_physical(kind: str) -> None:
    """At 1 GiB no GPU sends faster than its 18 NVLinks carry, nor at less than 80 % of what four GPUs reach."""
    for n in (2, 4, 8):
        us = collective_cost(Message(kind, 1 << 30, n), builtin_profile()).us
        assert 240e3 < (1 << 30) * wire_share(kind, n) / us < 450e3
    latency = [collective_cost(Message(kind, 1024, n), builtin_profile()).us for n in (2, 4, 8)]
    assert latency == sorted(latency) and latency[2] < 3 * latency[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 16, 64])
def test_never_falls_with_size(kind: str, n: int) -> None:
    profile = Profile(make_topology("H100"))
    times = [collective_cost(Message(kind, 1 << power, n), profile).us for power in range(35)]
    assert times == sorted(times) and (times[0] > 0 if n > 1 else times == [0.0] * 35)


def test_the_interval_is_wider_for_what_was_not_measured() -> None:
    def width(n: int, gpu: str) -> float:
        cost = collective_cost(Message("all_gather", 64 * MIB, n), Profile(make_topology(gpu)))
        assert cost.low_us < cost.us < cost.high_us
        return (cost.high_us - cost.low_us) / cost.us

    assert width(2, "H200") < width(8, "H200") < width(8, "A100") < width(16, "H200")


def test_slower_links_and_networks_cost_more() -> None:
    def us(n: int, **changes: float) -> float:
        return collective_cost(Message("all_reduce", 256 * MIB, n), Profile(make_topology("A100", **changes))).us

    assert us(8) > collective_cost(Message("all_reduce", 256 * MIB, 8), Profile(make_topology("H100"))).us
    assert us(16) > us(8), "over the network"
    assert us(16, network_gb_s=3.0) > 3 * us(16, network_gb_s=25.0)
    pci = collective_cost(Message("all_reduce", 256 * MIB, 8), Profile(make_topology("A100", "PCI")))
    assert pci.us > 5 * us(8) and pci.protocol != "LL128"


def test_what_nccl_would_run() -> None:
    node = make_topology("H100")
    assert candidates(Message("all_reduce", 1024, 8), node)[0].protocol == "LL"
    large = candidates(Message("all_reduce", 1 << 30, 8), node)[0]
    assert (large.algorithm, large.protocol) == ("ring", "Simple")
    assert candidates(Message("all_reduce", 1 << 20, 512), node)[0].algorithm == "tree", "few hops between 64 nodes"
    nvls = candidates(Message("all_reduce", 1 << 30, 8), replace(node, nvls=True))[0]
    assert nvls.algorithm == "nvls" and nvls.us < large.us
    ampere = replace(make_topology("A100"), nvls=True)
    assert candidates(Message("all_reduce", 1 << 30, 8), ampere)[0].algorithm == "ring"
    assert {way.algorithm for way in candidates(Message("all_gather", 1 << 20, 8), node)} == {"ring"}
    assert candidates(Message("all_to_all", 1 << 20, 8), node)[0].algorithm == "p2p"


def test_the_curve_of_known_physics_is_found() -> None:
    def truth(size: int, n: int) -> float:
        return 5 + 1.5 * (n - 1) + size * (n - 1) / n / 3e5 + size / n / 1e6

    points = [(1 << power, n, truth(1 << power, n)) for power in range(10, 31) for n in (2, 4)]
    curve = fit_curve("all_gather", points)
    for n in (3, 8):
        for power in (10, 20, 30):
            assert curve.us(1 << power, n) == pytest.approx(truth(1 << power, n), rel=0.03)


def test_one_disturbed_measurement_moves_little() -> None:
    clean = [(1 << p, n, 10 + n + (1 << p) / 3e5) for p in range(10, 31) for n in (2, 4)]
    disturbed = [(size, n, us * 10 if (size, n) == (1 << 14, 4) else us) for size, n, us in clean]
    assert mean_error(fit_curve("all_reduce", disturbed), clean) < 0.03


def test_a_profile_is_what_it_was_after_json(tmp_path: Path) -> None:
    fitted = make_profile(make_topology("H200", "NV18"), MEASURED, LAUNCH, "test")
    file = tmp_path / "profile.json"
    file.write_text(fitted.dumps())
    again = read_profile(file)
    assert (again.topology, again.launch_us, again.source) == (fitted.topology, fitted.launch_us, "test")
    for kind, curve in fitted.curves.items():
        assert again.curves[kind].us(1e7, 8) == pytest.approx(curve.us(1e7, 8), rel=0.005)


@pytest.mark.nightly
def test_the_built_in_profile_is_the_fit_of_the_data() -> None:
    fitted = make_profile(make_topology("H200", "NV18"), *read_points(*HOSTS), "2 to 4 H200, NV18, NCCL 2.28")
    found = json.loads((DATA / "overlap_h200_w4.json").read_text())
    beside = {kind: contention_rows([Beside(**row) for row in rows]) for kind, rows in found["beside"].items()}
    figures = {name: found[name] for name in ("gemm_tflops", "copy_gb_s")}
    figures["unseen"] = builtin_profile().unseen  # which the test of intervals on other world sizes holds
    assert builtin_profile() == parse_profile(replace(fitted, contention=beside, **figures).dumps(), "test")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no JSON"),
        ("{}", "no object 'topology'"),
        ('{"topology": {"gpu": "H100"}}', "missing: generation"),
        ('{"topology": {"gpu": "H100", "cores": 3}}', "unknown: cores"),
        ('{"format": 9, "topology": {}}', "format 9"),
    ],
)
def test_a_bad_profile_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        parse_profile(text, "p.json")


def test_bad_values_in_a_profile() -> None:
    text = Profile(make_topology("H100")).dumps()
    for old, new, says in [
        ('"gpus_per_node": 8', '"gpus_per_node": 0', "gpus_per_node >= 1"),
        ('"link": "NV18"', '"link": "USB"', "got 'USB'"),
        ('"generation": "hopper"', '"generation": "fermi"', "litz knows volta"),
        ('"nvls": false', '"nvls": "no"', "nvls of the topology"),
        ('"curves": {}', '"curves": {"all_gather": {}}', "a curve is not"),
    ]:
        assert old in text
        with pytest.raises(TopologyError, match=says):
            parse_profile(text.replace(old, new), "p.json")


def test_bad_messages() -> None:
    for message in (Message("gossip", 1, 2), Message("all_reduce", -1, 2), Message("all_reduce", 1, 0)):
        with pytest.raises(TopologyError):
            collective_cost(message, builtin_profile())


def test_gpus_by_the_drivers_names() -> None:
    names = {"NVIDIA H100 80GB HBM3": "H100", "NVIDIA A100-SXM4-80GB": "A100", "NVIDIA GH200 480GB": "GH200"}
    assert {name: known_gpu(name) for name in names} == names
    assert known_gpu("NVIDIA GeForce RTX 4090") is None


def test_a_curve_does_not_fall_between_regimes() -> None:
    steep, flat = Regime(1000.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0), Regime(float("inf"), 5.0, 0.0, 0.1, 0.0, 0.0, 0.0)
    curve = Curve("permute", (2,), (steep, flat))
    assert curve.us(1000, 2) == curve.us(1001, 2) == 1001.0
