"""The benchmark of whole models runs in small on the CPU, says what fails, and its zoo is what it says."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from support.no_gpu import gpu_hidden
from support.warm_children import warm_python

sys.path.insert(0, str(Path(__file__).parents[2]))
with gpu_hidden():
    from benchmarks import beside, record, rows_table, side_by_side, zoo_step
    from benchmarks.device_time import DeviceKernel, trace
    from benchmarks.kernel_kinds import ANCHORS, kind_of, short
    from benchmarks.own_kernels import Own, described, matched, own_kernels
    from benchmarks.rows import Figures, Row, read_facts, read_rows, write_rows
    from benchmarks.zoo import ZOO, find, missing
    from benchmarks.zoo.physics import SeaWater

CPU = torch.device("cpu")
QUICK = ("sea_water", "graph_messages")
FAMILIES = {
    "encoder", "decoder", "encoder-decoder", "state space", "mixture of experts", "convolutions", "windows",
    "convolutions and attention", "attention", "diffusion", "speech", "recommendation", "graph network", "recurrent",
    "physics",
}  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- the zoo


def test_the_zoo_has_every_family() -> None:
    assert len(ZOO) >= 27
    assert {model.family for model in ZOO.values()} == FAMILIES


@pytest.mark.nightly
@pytest.mark.parametrize("name", ZOO)
def test_a_model_can_be_made_in_both_sizes(name: str) -> None:
    """In full on no device at all; in small it runs, and what it is trained by has a gradient."""
    model = ZOO[name]
    if missing(model):
        pytest.skip(f"{', '.join(missing(model))} not installed")
    with torch.device("meta"):
        full = sum(parameter.numel() for parameter in model.make(False).parameters())
    assert full < 2e9
    for task in ("inference", "training"):
        if zoo_step.why_not(model, task):
            continue
        subject = zoo_step.make_subject(model, task, CPU, small=True)
        found = zoo_step.make_step(subject, subject.module)()
        assert found and all(tensor.isfinite().all() for tensor in found)
        assert sum(p.numel() for p in subject.module.parameters()) <= max(full, 0)
        if task == "training":
            assert len(found) > 1 and any(bool(gradient.any()) for gradient in found[1:])


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["bert", "mixtral", "gru", "efficientnet_b0", "shallow_water"])
def test_float64_judges_a_model(name: str) -> None:
    if missing(ZOO[name]):
        pytest.skip("transformers not installed")
    subject = zoo_step.make_subject(ZOO[name], "inference", CPU, small=True)
    expected = zoo_step.exact(subject)
    found = zoo_step.make_step(subject, subject.module)()
    assert all(tensor.dtype == torch.float64 for tensor in expected)
    assert max(float(tensor.abs().max()) for tensor in expected) > 1e-3, "the layers leave something to judge"
    assert 0 < zoo_step.error(found, expected) < 1e-4
    assert zoo_step.error([tensor * 1.5 for tensor in expected], expected) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="float64"):
        zoo_step.error(found[:-1], expected)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("salt", "heat", "pressure", "density"),
    [(0, 5, 0, 999.96675), (35, 5, 0, 1027.67547), (35, 25, 1000, 1062.53817), (35, 5, 1000, 1069.48914)],
)
def test_the_density_of_sea_water(salt: float, heat: float, pressure: float, density: float) -> None:
    """The check values that UNESCO's report gives for EOS-80."""
    fields = [torch.full((1, 2, 1, 1), value, dtype=torch.float64) for value in (salt, heat, pressure)]
    assert float(SeaWater()(*fields)["density"][0, 0]) == pytest.approx(density, abs=1e-4)


# -------------------------------------------------------------------------------------------------------- side by side


def run(*arguments: str) -> None:
    side_by_side.main([*arguments, "--device", "cpu", "--seconds", "0"])


@pytest.mark.nightly
def test_a_row_has_everyones_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    run("--only", *QUICK, "--peers", "eager", "litz", "--out", str(out))
    rows = read_rows(out)
    # sea_water has no parameters, so there is nothing to train.
    assert [(row.model, row.task) for row in rows] == [
        ("sea_water", "inference"), ("graph_messages", "inference"), ("graph_messages", "training"),
    ]  # fmt: skip
    for row in rows:
        assert not row.problem and row.type == "float32" and row.batch and row.dynamo_graphs >= 1
        for figures in row.peers.values():
            assert not figures.problem and figures.error < 1e-4
            assert min(figures.wall_ms, figures.gpu_ms, figures.launches, figures.first_s) > 0
            assert figures.gpu_ms > 0.2 * sum(k.us for k in figures.trace) / 1e3  # a mean of two
    assert read_facts(out)["small"] and read_facts(out)["copy_bytes_per_second"] > 0
    printed = capsys.readouterr().out
    assert "eager / litz, wall" in printed and max(map(len, printed.splitlines())) <= 100


@pytest.mark.nightly
def test_what_fails_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    made = zoo_step.make_peer_step

    def make(subject: Any, peer: str, mode: str) -> Any:
        if peer == "inductor":
            raise RuntimeError("no compiler today\nand more of it")
        return made(subject, peer, mode)

    monkeypatch.setattr(side_by_side, "make_peer_step", make)
    out = tmp_path / "out.json"
    run("--only", "sea_water", "--tasks", "inference", "--out", str(out), "--json", str(tmp_path / "inference.jsonl"))
    (row,) = read_rows(out)
    (line,) = record.read_rows(tmp_path)
    assert (line.case, line.mode, line.dtype, line.note) == ("sea_water", "default", "float32", "the size for a CPU")
    assert set(line.peers) == {"eager", "litz"} and line.problems == {"inductor": row.peers["inductor"].problem}
    assert line.peers["litz"]["wall_ms"] == pytest.approx(row.peers["litz"].wall_ms, rel=1e-4)
    assert line.peers["litz"]["cold_s"] > 0 and "peak_mib" not in line.peers["litz"]
    assert row.peers["inductor"].problem == "RuntimeError: no compiler today" and math.isnan(
        row.peers["inductor"].gpu_ms
    )
    assert row.peers["litz"].wall_ms > 0 and row.peers["eager"].wall_ms > 0
    assert "inductor: RuntimeError: no compiler today" in capsys.readouterr().out


@pytest.mark.nightly
def test_a_model_without_its_library_is_not_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setattr(side_by_side, "missing", lambda model: ("timm",))
    run("--only", "coatnet_0_rw_224", "--tasks", "inference", "--out", str(tmp_path / "out.json"))
    (row,) = read_rows(tmp_path / "out.json")
    assert row.problem == "timm not installed" and not row.peers
    assert "timm not installed" in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["transformers:roberta", "transformers:phi3", "transformers:mbart"])
def test_any_model_of_transformers(name: str, tmp_path: Path, capsys: Any) -> None:
    """An encoder, a decoder, and text to text, by their types alone; small ones learn."""
    if missing(ZOO["bert"]):
        pytest.skip("transformers not installed")
    run("--only", name, "--tasks", "training", "--peers", "eager", "--out", str(tmp_path / "out.json"))
    (row,) = read_rows(tmp_path / "out.json")
    assert row.model == name and not row.problem and row.peers["eager"].error < 1e-4
    assert name.partition(":")[2] in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["transformers:gpt_neo", "transformers:funnel"])
def test_a_model_that_refuses_another_number_of_layers_has_its_own(name: str) -> None:
    pytest.importorskip("transformers")
    assert find(name).make(True).config.num_hidden_layers > 2


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["nobody", "transformers:nobody", "timm:", "keras:resnet"])
def test_a_model_that_is_not_there(name: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        run("--only", name)
    assert "no model" in capsys.readouterr().err


@pytest.mark.nightly
def test_what_a_backend_says_is_in_the_line() -> None:
    """dynamo's own line only says that a backend raised something."""
    problem = RuntimeError("backend='litz' raised:\nCodegenError: no code for add\n  where: here")
    assert side_by_side._one_line(problem) == "RuntimeError: CodegenError: no code for add"


@pytest.mark.nightly
def test_only_what_the_file_lacks_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = Row("sea_water", "inference", "default", peers={"eager": Figures()})
    failed = Row("shallow_water", "inference", "default", problem="late")
    write_rows(out, [done, failed], {})
    measured: list[Any] = []

    def measure(key: Any, *more: Any) -> Row:
        measured.append(key)
        return Row(*key)

    monkeypatch.setattr(side_by_side, "measure", measure)
    run("--only", "sea_water", "shallow_water", "dlrm", "--tasks", "inference", "--out", str(out), "--resume")
    assert [name for name, _, _ in measured] == ["shallow_water", "dlrm"]
    assert [row.model for row in read_rows(out)] == ["sea_water", "shallow_water", "dlrm"]
    measured.clear()
    run("--only", "sea_water", "shallow_water", "dlrm", "--tasks", "inference", "--part", "2/2")
    assert [name for name, _, _ in measured] == ["shallow_water"]


@pytest.mark.nightly
@pytest.mark.slow
def test_processes_that_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side.sys, "executable", warm_python())
    out = tmp_path / "out.json"
    run("--only", *QUICK, "--tasks", "inference", "--peers", "eager", "litz", "--jobs", "2", "--out", str(out))
    rows = {row.model: row for row in read_rows(out)}
    assert set(rows) == set(QUICK) and all(row.peers["litz"].wall_ms > 0 for row in rows.values())


@pytest.mark.nightly
def test_a_process_that_ends_early_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side.sys, "executable", "false")
    run("--only", "sea_water", "dlrm", "--tasks", "inference", "--jobs", "2", "--out", str(tmp_path / "out.json"))
    assert {row.problem for row in read_rows(tmp_path / "out.json")} == {"exit status 1: "}


@pytest.mark.nightly
def test_a_file_gives_back_the_rows(tmp_path: Path) -> None:
    kernels = [DeviceKernel("a", 1, 2.5), DeviceKernel("b", 1, 1.25), DeviceKernel("a", 1, 3.0)]
    figures = Figures(1.0, 2.0, 3, trace=kernels, own=[Own("a", "add + mul", 12.0)], peak_mib=1, first_s=2, error=0.1)
    row = Row("gpt2", "training", "default", "decoder", "bfloat16", 8, 1.5, 2, peers={"litz": figures})
    write_rows(tmp_path / "rows.json", [row], {"where": "here"})
    assert read_rows(tmp_path / "rows.json") == [row] and read_facts(tmp_path / "rows.json") == {"where": "here"}
    assert json.loads((tmp_path / "rows.json").read_text())["rows"][0]["peers"]["litz"]["trace"]["names"] == ["a", "b"]


@pytest.mark.nightly
def test_the_summary_has_geometric_means_and_the_worst() -> None:
    def row(model: str, inductor: float, litz: float) -> Row:
        return Row(
            model, "inference", "default", peers={"inductor": Figures(inductor, inductor), "litz": Figures(litz, litz)}
        )

    broken = Row("dlrm", "inference", "default", peers={"inductor": Figures(1, 1), "litz": Figures(problem="no")})
    (text,) = rows_table.summary([row("bert", 4, 1), row("gpt2", 1, 4), row("opt", 2, 1), broken])
    assert "3 models" in text and f"GPU  {2 ** (1 / 3):6.3f}   worst 0.25 gpt2" in text
    assert len(rows_table.line(broken).splitlines()) == 2


# --------------------------------------------------------------------------------------------------------------- beside


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", "product"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64", "product"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::cublasSplitKParams<float>)", "helper"),
        ("litz_gemm_bf16_64x64x32", "product"),
        ("triton_tem_fused_addmm_3", "product"),
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", "convolution"),
        ("cudnn::engines_precompiled::nchwToNhwcKernel<float, float>", "layout"),
        ("void conv2d_c1_k1_nhwc_kernel<float>", "convolution"),
        ("void at::native::conv_depthwise2d_forward_kernel<3, float>", "convolution"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention"),
        ("litz_attention_forward_bf16_128x64", "attention"),
        ("Memcpy HtoD (Pageable -> Device)", "copy"),
        ("Memset (Device)", "copy"),
        ("triton_per_fused_add_native_layer_norm_5", "reduction"),
        ("triton_red_fused__softmax_1", "reduction"),
        ("litz_reduce_exp_sum", "reduction"),
        ("litz_row_add_rsqrt", "reduction"),
        ("triton_poi_fused_convolution_gelu_2", "pointwise"),
        ("triton_poi_fused_addmm_gelu_2", "pointwise"),
        ("litz_pointwise_mul_tanh", "pointwise"),
        ("litz_scatter_add", "scatter"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "pointwise"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>", "norm"),
        ("something_else", "other"),
    ],
)  # fmt: skip
def test_the_kind_of_a_kernel(name: str, kind: str) -> None:
    assert kind_of(name) == kind
    assert 0 < len(short(name, 30)) <= 30


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, a>(int)",
         "vectorized_elementwise_kernel add"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, f>, u>>(x)",
         "reduce_kernel Mean"),
        ("void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(at::It&)::{lambda()#3}>(int)",
         "elementwise_kernel direct_copy"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>(p)",
         "cutlass::Kernel2 80_tensorop_bf16_s16816gemm_relu"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float>(int)", "softmax_warp_forward"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
        ("litz_pointwise_gelu = add + gelu", "litz_pointwise_gelu = add + gelu"),
    ],
)  # fmt: skip
def test_a_kernels_name_in_short(name: str, said: str) -> None:
    assert short(name, 69) == said


def launches(*kernels: tuple[str, float]) -> list[DeviceKernel]:
    return [DeviceKernel(name, 1, us) for name, us in kernels]


LAYER = (("nvjet_a", 10.0), ("triton_poi_fused_gelu_1", 2.0), ("nvjet_b", 10.0), ("triton_per_fused_norm_2", 3.0))
OURS = (
    ("nvjet_a", 10.0),
    ("litz_pointwise_gelu", 5.0),
    ("nvjet_b", 9.0),
    ("litz_reduce_norm", 1.0),
    ("litz_pointwise_add", 1.0),
)


@pytest.mark.nightly
def test_places_of_equal_layers_are_one_and_the_loss_comes_first() -> None:
    theirs, ours = launches(*3 * LAYER), launches(*3 * OURS)
    places = beside.by_place(theirs, ours)
    assert [place.anchor for place in places] == ["start", *6 * ["product"]]
    assert sum(place.lost_us for place in places) == sum(k.us for k in ours) - sum(k.us for k in theirs)
    worst = beside.alike(places)[0]
    assert len(worst) == 3 and sum(place.lost_us for place in worst) == 9
    assert {kernel.name for kernel in worst[0].ours} == {"nvjet_a", "litz_pointwise_gelu"}
    text = beside.text(theirs, ours, ("inductor", "litz"), 5)
    assert "lost 9.0 us in 3 x after a product: inductor 36.0, litz 45.0" in text
    assert "gained in all other places: 6.0 us" in text and max(map(len, text)) <= 100


@pytest.mark.nightly
def test_contractions_that_one_backend_has_not_are_a_place_of_their_own() -> None:
    """Three products in one launch there, and attention written out here: everything else stays aligned."""
    theirs = launches(("nvjet_qkv", 9.0), ("flash_fwd_kernel", 8.0), ("triton_poi_x_0", 1.0), ("nvjet_out", 4.0))
    ours = launches(
        ("nvjet_q", 4.0), ("nvjet_k", 4.0), ("nvjet_v", 4.0), ("flash_fwd_kernel", 8.0), ("litz_pointwise_x", 1.0),
        ("nvjet_out", 4.0),
    )  # fmt: skip
    places = beside.by_place(theirs, ours)
    assert sorted((k.name, k.us) for p in places for k in p.ours) == sorted((k.name, k.us) for k in ours)
    assert sorted((k.name, k.us) for p in places for k in p.theirs) == sorted((k.name, k.us) for k in theirs)
    (attention,) = (place for place in places if place.anchor == "attention")
    assert attention.lost_us == 0
    assert sum(place.lost_us for place in places) == 3


@pytest.mark.nightly
def test_kinds_in_order_of_what_is_lost() -> None:
    kinds = beside.by_kind(launches(*LAYER), launches(*OURS))
    assert [(kind.name, kind.ours_us - kind.theirs_us, kind.ours_count) for kind in kinds] == [
        ("pointwise", 4.0, 2), ("product", -1.0, 2), ("reduction", -2.0, 1),
    ]  # fmt: skip


@pytest.mark.nightly
def test_litzs_kernels_meet_what_they_do_by_name_and_order() -> None:
    own = [Own("litz_a", "add", 1e3), Own("litz_b", "mul", 2e3), Own("litz_a", "sub", 3e3), Own("litz_c", "exp", 1e3)]
    run = launches(("litz_a", 1.0), ("gemm", 9.0), ("litz_b", 2.0), ("litz_a", 4.0), ("litz_c", 1.0), ("litz_c", 1.0))
    assert [(kernel.us, what.what) for kernel, what in matched(run, own)] == [(1.0, "add"), (2.0, "mul"), (4.0, "sub")]
    names = [kernel.name for kernel in described(run, own)]
    assert names == ["litz_a = add", "gemm", "litz_b = mul", "litz_a = sub", "litz_c", "litz_c"]
    lost = beside.slow(run, own, speed=1e9)  # 1 us for 1000 bytes
    assert [(us, share, what.what) for us, share, _, what in lost] == [(1.0, 0.75, "sub")]


@pytest.mark.nightly
def test_own_kernels_are_those_of_the_reports() -> None:
    class Step:
        name, kind, what, origins, fused, bytes = "kernel0", "kernel", "[8] f32", ("add_1", "mul_2"), (), 96.0

    class Report:
        steps = (Step(), type("Call", (Step,), {"name": "call1"})())
        kernel_sources = {"kernel0": "@triton.jit\ndef litz_finish0(p):\n\n@triton.jit\ndef litz_reduce_sum(p0):\n"}

    assert own_kernels([Report()]) == [Own("litz_reduce_sum", "add + mul", 96.0)]  # type: ignore[list-item]


@pytest.mark.nightly
def test_a_trace_is_in_order() -> None:
    x = torch.randn(64, 64)
    found = [kernel.name for kernel in trace(lambda: torch.sin(x @ x), CPU) if kernel.name in ("aten::mm", "aten::sin")]
    assert found == ["aten::mm", "aten::sin"]


@pytest.mark.gpu
def test_a_trace_has_every_kernel_of_a_step_in_order() -> None:
    device = torch.device("cuda")
    x = torch.randn(4096, 1024, device=device)
    kernels = trace(lambda: torch.sin(x @ x[:1024]).softmax(-1), device)
    kinds = [kind_of(kernel.name) for kernel in kernels]
    assert [kind for kind in kinds if kind != "helper"] == ["product", "pointwise", "reduction"]
    assert all(kernel.us > 1 for kernel in kernels)
    graph = torch.cuda.CUDAGraph()
    torch.sin(x @ x[:1024])
    with torch.cuda.graph(graph):
        torch.sin(x @ x[:1024])
    assert [kind_of(kernel.name) for kernel in trace(graph.replay, device)][-1] == "pointwise"


@pytest.mark.gpu
def test_side_by_side_on_a_gpu(tmp_path: Path) -> None:
    """In processes of their own: memory that other tests leave in graphs, and free here, is in no figure."""
    out = tmp_path / "rows.json"
    names = ["gpt2", "sea_water"]
    how = ["--small", "--modes", "default", "reduce-overhead", "--seconds", "0.2", "--jobs", "2"]
    side_by_side.main(["--only", *names, *how, "--out", str(out)])
    rows = read_rows(out)
    assert {(row.mode, row.task, row.model) for row in rows} == {
        (mode, task, name) for mode in ("default", "reduce-overhead")
        for task, name in (("inference", "gpt2"), ("inference", "sea_water"), ("training", "gpt2"))
    }  # fmt: skip
    for row in rows:
        assert not row.problem
        for figures in row.peers.values():
            assert not figures.problem and figures.gpu_ms > 0 and figures.launches > 0 and figures.peak_mib > 0
        ours = row.peers["litz"]
        assert bool(ours.graphs) == (row.mode == "reduce-overhead")
        assert ours.own and len(matched(ours.trace, ours.own)) == len(ours.own)
        assert any(kind_of(kernel.name) in ANCHORS for kernel in ours.trace) == (row.model == "gpt2")
    beside.main([str(out)])
