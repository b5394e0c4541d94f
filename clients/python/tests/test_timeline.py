"""The timeline, snapshots and reports of a program."""

import io
import json
import os

import memwarden


def test_a_timeline_with_units(daemon, monitor, torch, tmp_path):
    torch.cuda.initialize()
    monitor.step(3)
    monitor.record("begin", {"note": "validation set A"})
    tensor = torch.Tensor([0.0] * 6, (2, 3), torch.bfloat16, "cuda:0")
    model = torch.nn.Module(wte=torch.Tensor([1.0] * 4, (2, 2)))
    detailed = monitor.record_detailed("end", tensors={"logits": tensor}, model=model)
    logits = {"name": "logits", "shape": [2, 3], "dtype": "bf16", "device": "cuda:0", "bytes": 12}
    assert detailed["tensors"] == [logits]
    assert detailed["model"]["parameter_bytes"] == 16
    first, _ = monitor.timeline()
    assert (first["allocated_bytes"], first["allocated_peak_bytes"]) == (6 << 30, 7 << 30)
    assert (first["reserved_bytes"], first["reserved_peak_bytes"]) == (8 << 30, 8 << 30)
    assert first["host_rss_bytes"] > 1 << 20 and first["elapsed_seconds"] > 0
    (event, _) = daemon.wait_for("event", 2)
    assert (event["name"], event["step"], event["detail"]["allocated"]) == ("begin", 3, 6 << 30)
    text = io.StringIO()
    monitor.print_timeline(text)
    lines = text.getvalue().splitlines()
    assert lines[0].split() == ["elapsed", "step", "event", "allocated", "peak", "reserved", "host"]
    assert "begin" in lines[1] and "6.0 GiB" in lines[1] and "7.0 GiB" in lines[1]
    file = tmp_path / "out.json"
    assert monitor.export_json(str(file))
    exported = json.loads(file.read_text())
    assert [entry["event"] for entry in exported["timeline"]] == ["begin", "end"]
    assert os.listdir(tmp_path) == ["out.json"]


def test_without_a_device_memory_is_unknown_and_not_zero(monitor):
    entry = monitor.record("here")
    assert entry["allocated_bytes"] is None and entry["devices"] == {}


def test_snapshots_are_compared(daemon, monitor, torch):
    torch.cuda.initialize()
    monitor.memory_snapshot("a")
    torch.cuda.allocated += 1 << 20
    monitor.memory_snapshot("b")
    growth = monitor.compare("a", "b")
    assert (growth["from"], growth["to"]) == ("a", "b")
    assert (growth["allocated_bytes"], growth["reserved_bytes"]) == (1 << 20, 0)
    assert growth["devices"]["0"]["allocated_bytes"] == 1 << 20
    torch.cuda.initialized = False
    monitor.memory_snapshot("c")
    assert monitor.compare("b", "c")["allocated_bytes"] is None


def test_a_function_and_a_stage_are_measured(daemon, monitor, torch):
    torch.cuda.initialize()

    def load(many):
        torch.cuda.allocated += many
        return "loaded"

    assert monitor.monitor_function(load, 4096) == "loaded"
    assert monitor.stage_growth("load")["allocated_bytes"] == 4096
    with monitor.profile_stage("evaluation"):
        torch.cuda.allocated -= 4096
    assert monitor.stage_growth("evaluation")["allocated_bytes"] == -4096
    assert monitor.phases()["evaluation"]["count"] == 1
    assert monitor.profile_stage("again", load, 512) == "loaded"
    assert monitor.stage_growth("again")["allocated_bytes"] == 512


def test_a_report_for_people(daemon, monitor, torch):
    assert monitor.timeline_summary() == {}
    torch.cuda.initialize()
    monitor.record("begin")
    torch.cuda.allocated += 1 << 30
    monitor.record("middle")
    torch.cuda.allocated -= 1 << 29
    monitor.record("begin")
    with monitor.phase("forward"):
        pass
    summary = monitor.timeline_summary()
    assert summary["peak"]["event"] == "middle" and summary["growth"]["allocated_bytes"] == 1 << 29
    assert summary["events"]["begin"] == {"count": 2, "mean_bytes": (6 << 30) + (1 << 28)}
    text = monitor.report()
    assert "Most at `middle`, step 0: 7.0 GiB" in text and "to the last: +512.0 MiB" in text
    assert "forward" in text


def test_how_full_memory_is(monitor, torch):
    torch.cuda.initialize()
    status = monitor.check_memory_status(0.85)
    assert not status["ok"] and "device 0" in status["over"]
    assert status["parts"]["device 0"] == {
        "used_bytes": 72 << 30,
        "total_bytes": 80 << 30,
        "used_ratio": 0.9,
    }
    assert 0 < status["parts"]["host"]["used_ratio"] < 1
    assert "device 0" not in monitor.check_memory_status(0.95)["over"]


def test_cleanup_says_what_it_freed(monitor, torch):
    torch.cuda.initialize()
    freed = monitor.cleanup()
    assert (freed["allocated_freed_bytes"], freed["reserved_freed_bytes"]) == (0, 2 << 30)


def test_variants_are_compared():
    def fails():
        raise MemoryError("too much\nfor us")

    results = memwarden.compare_configurations({"fails": fails, "works": lambda: None})
    assert [result["name"] for result in results] == ["works", "fails"]
    assert results[1]["error"] == "MemoryError: too much"
    assert results[0]["allocated_peak_bytes"] is None
    assert memwarden.compare_text(results).splitlines()[1].startswith("works")
