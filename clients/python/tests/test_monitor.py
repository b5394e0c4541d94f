"""What a program calls, and what the daemon is told."""

import http.server
import json
import math
import os
import re
import signal
import threading

import memwarden
import pytest
from conftest import CLIENT, PATIENCE, REPOSITORY
from memwarden import _base, _evidence


def documented():
    """The examples of the protocol, by type."""
    text = (REPOSITORY / "clients/PROTOCOL.md").read_text()
    found = {}
    for block in re.findall(r"```json\n(.*?)```", text, re.S):
        for line in block.splitlines():
            message = json.loads(line)
            found.setdefault(message["type"], {}).update(message)
    return found


def test_every_message_is_documented(daemon, monitor, torch, monkeypatch):
    torch.cuda.initialize()
    monitor.describe(sequence_length=8, global_batch=4, precision="bf16", recompute="none", data_parallel=1)
    model = torch.nn.Module(wte=torch.Tensor([1.0] * 4, (2, 2)))
    model.config = {"model_type": "gpt", "n_layer": 1, "n_embd": 2, "n_head": 1, "vocab_size": 2}
    monitor.start()
    monitor.analyze_model(model)
    monitor.step(1, tokens=1, samples=1, loss=1.0, learning_rate=0.1, grad_norm=1.0, seconds=0.5)
    with monitor.phase("forward"):
        pass
    monitor._flush()
    monitor._allocator.send()
    monitor.record("here")
    monitor._allocator.failed(0, 1, 2, 3)
    monitor.checkpoint_saving("/tmp/x")
    optimizer = torch.optim.AdamW([torch.Tensor([1.0], device="cuda:0", requires_grad=True)])
    monitor._fit.made(optimizer)
    monitor._fit.forward_begins(2, 8)
    sizes, counts = iter(range(0, 1 << 40, 1 << 30)), iter([{"type": {"x": 1}}, {"type": {"x": 1000}}])
    monkeypatch.setattr(_evidence, "_memory", lambda: next(sizes))
    monkeypatch.setattr(_evidence, "APART", 0.0)
    monkeypatch.setattr(monitor._evidence, "count", lambda: next(counts))
    for _ in range(3):
        monitor._evidence.watch()
    monitor.stop()
    daemon.wait_end()
    examples = documented()
    assert {message["type"] for message in daemon.all()} == set(examples)
    for message in daemon.all():
        example = examples[message["type"]]
        assert set(message) <= set(example), message
        for key, value in message.items():
            same = type(value) is type(example[key]) or {type(value), type(example[key])} == {int, float}
            assert same, (message["type"], key)
        for group in ("devices", "model"):
            inner, known = message.get(group, {}), example.get(group, {})
            if group == "devices" and inner:
                inner, known = inner["0"], known["0"]
            assert set(inner) <= set(known), message


def test_steps_and_totals(daemon, monitor):
    monitor.step(tokens=10, samples=2, loss=2.5, learning_rate=0.001, grad_norm=1.5)
    monitor.step(tokens=10, samples=2, loss=float("nan"), seconds=0.25)
    monitor.step(7, tokens=10.0, learning_rate=math.nan, grad_norm=math.inf, skipped=True)
    first, second, third = daemon.wait_for("step", 3)
    assert "seconds" not in first and second["seconds"] == 0.25 and third["seconds"] > 0
    assert [step["step"] for step in (first, second, third)] == [1, 2, 7]
    assert [step["tokens"] for step in (first, second, third)] == [10, 20, 30]
    assert (first["loss"], first["learning_rate"], first["grad_norm"]) == (2.5, 0.001, 1.5)
    assert (second["loss"], third["grad_norm"]) == ("nan", "inf")
    assert (third["samples"], third["skipped"], third["nan"]) == (4, 1, 2) and "learning_rate" not in third


def test_what_is_not_known_is_not_said(daemon, monitor):
    monitor.step(1)
    (step,) = daemon.wait_for("step")
    assert set(step) == {"type", "t", "step", "skipped", "nan", "dropped"}


def test_a_value_on_a_device_is_not_fetched(daemon, monitor, torch):
    monitor.step(1, loss=torch.Tensor([1.0], device="cuda:0"), grad_norm=torch.Tensor([2.0]))
    (step,) = daemon.wait_for("step")
    assert "loss" not in step and step["grad_norm"] == 2.0
    assert torch.synchronizations == 1


def test_only_the_steps_asked_for(daemon):
    monitor = memwarden.Monitor(monitor_steps=[1, [5, 7]], interval=0, min_interval=0)
    for n in range(1, 10):
        monitor.step(n, tokens=1)
        monitor.record("after %d" % n)
    monitor.stop()
    daemon.wait_end()
    assert [step["step"] for step in daemon.of("step")] == [1, 5, 6, 7]
    assert [entry["step"] for entry in monitor.timeline()] == [1, 5, 6, 7]
    assert daemon.of("step")[-1]["tokens"] == 7


def test_fast_steps_are_gathered(daemon):
    monitor = memwarden.Monitor(interval=0, min_interval=3600)
    for n in range(1, 100):
        monitor.step(n, tokens=1)
    monitor.stop()
    daemon.wait_end()
    assert [(step["step"], step["tokens"]) for step in daemon.of("step")] == [(1, 1), (99, 99)]


HOSTILE = [object(), "text", [], {}, b"\xff", 1e400, -1, lambda: None, "\ud800", {"a": object()}, [float("nan")]]


class Liar:
    shape = dtype = device = property(lambda self: 1 / 0)

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize("value", [*HOSTILE, Liar()], ids=lambda value: type(value).__name__)
def test_nothing_raises(daemon, monkeypatch, tmp_path, value):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_base, "DEBUG", False)
    monitor = memwarden.Monitor(value, interval=0, min_interval=0, monitor_steps=value)
    calls = [
        lambda: monitor.step(value),
        lambda: monitor.step(1, tokens=value, samples=value, loss=value, learning_rate=value, grad_norm=value),
        lambda: monitor.record(value, value),
        lambda: monitor.record_detailed("x", tensors=value, model=value, extra=value),
        lambda: monitor.memory_snapshot(value),
        lambda: monitor.compare(value, value),
        lambda: monitor.check_memory_status(value),
        lambda: monitor.analyze_model(value),
        lambda: monitor.attach(value, value),
        lambda: monitor.on_risk(value, value),
        lambda: monitor.describe(value, sequence_length=value),
        lambda: monitor.checkpoint_saving(value),
        lambda: monitor.checkpoint_saved(value, value),
        lambda: monitor.on_checkpoint_signal(value),
        lambda: monitor.export_json(value),
        lambda: monitor.print_timeline(value),
        lambda: monitor.report(),
        lambda: monitor.start(),
        lambda: monitor.stop(value),
    ]
    for call in calls:
        call()
    with monitor.phase(value), monitor.profile_stage(value), monitor.checkpoint(value):
        pass
    monitor.stop()
    # Whatever was sent was JSON.
    daemon.wait_end()
    daemon.all()


def test_switched_off_it_does_nothing(daemon, monkeypatch):
    monkeypatch.setenv("MEMWARDEN_DISABLE", "1")
    monitor = memwarden.Monitor(interval=0)
    monitor.start()
    monitor.step(1)
    assert monitor.record("x") == {} and monitor.memory_snapshot("x") == {}
    with monitor.phase("forward"):
        pass
    monitor.stop()
    assert daemon.connections == []


def test_an_exception_passes_through_unchanged(monitor):
    class Own(Exception):
        pass

    def fails():
        raise Own

    for call in (monitor.phase("a")(fails), lambda: monitor.monitor_function(fails)):
        with pytest.raises(Own):
            call()
    assert monitor.phases()["a"]["count"] == 1


def test_phases_count_and_nest(daemon, monitor):
    @monitor.phase("inner")
    def work(n):
        return n + 1

    with monitor.phase("outer"):
        assert [work(n) for n in range(3)] == [1, 2, 3]
    phases = monitor.phases()
    assert (phases["outer"]["count"], phases["inner"]["count"]) == (1, 3)
    assert 0 < phases["inner"]["seconds"] < phases["outer"]["seconds"]
    monitor._flush()
    # The first one of each name begins and ends at once.
    told = {phase["name"]: phase for phase in daemon.wait_for("phase", 5)}
    assert told["inner"]["count"] == 3 and told["inner"]["state"] == "end"
    assert "allocated_peak" not in told["inner"]
    # Told once.
    monitor._flush()
    monitor.step(1)
    daemon.wait_for("step")
    names = [(phase["name"], phase["state"], phase.get("count")) for phase in daemon.of("phase")]
    assert names[:3] == [("outer", "begin", None), ("inner", "begin", None), ("inner", "end", 1)]
    assert names[3:] == [("outer", "end", 1), ("inner", "end", 3)]


def test_the_peak_of_a_phase_is_its_own(daemon, monitor, torch):
    torch.cuda.initialize()
    with monitor.phase("forward"):
        torch.cuda.allocated = 5 << 30
    # The peak of 7 GiB was before; in the phase there were 6 GiB at most.
    assert monitor.phases()["forward"]["allocated_peak_bytes"] == 6 << 30
    with monitor.phase("backward"):
        torch.cuda.peak = 9 << 30
    assert monitor.phases()["backward"]["allocated_peak_bytes"] == 9 << 30


def test_the_allocator_is_read_again_whatever_threads_have_counted(daemon, monitor, torch):
    torch.cuda.initialize()
    for count in range(2):
        with monitor.phase("forward"):
            torch.cuda.peak += 1 << 30
        # Two threads that have both seen the last call that is only timed.
        monitor._phases.totals["forward"].lean = -1
    assert monitor.phases()["forward"]["allocated_peak_bytes"] == torch.cuda.peak


def test_phases_of_any_name_are_bounded(daemon, monitor):
    for n in range(1000):
        with monitor.phase("phase %d" % n):
            pass
    assert len(monitor.phases()) == _base.MOST_PHASES


def test_a_long_phase_is_told_while_it_lasts(daemon, monitor):
    name = "loader of the validation set"
    with monitor.phase(name):
        monitor._phases.totals[name].open_since -= 10
        monitor._phases.send_open()
        monitor._phases.send_open()
        (begin,) = daemon.wait_for("phase")
        assert (begin["name"], begin["state"]) == (name, "begin")


def test_texts_are_no_longer_than_the_daemon_accepts(daemon, monitor):
    long = "ü" * 1000
    monitor.describe(run=long)
    with monitor.phase(long):
        pass
    monitor.record(long)
    monitor.checkpoint_failed(reason=long)
    monitor.stop(long)
    daemon.wait_end()
    for kind, key, most in (("phase", "name", 64), ("event", "name", 256), ("checkpoint", "reason", 256)):
        message = daemon.of(kind)[-1]
        assert len(message[key].encode()) == most, message
    assert len(daemon.of("bye")[0]["reason"].encode()) == len(daemon.of("hello")[0]["run"].encode()) == 256


def test_the_allocator_is_told(daemon, monitor, torch):
    monitor.start()
    monitor._allocator.send()
    (mem,) = daemon.wait_for("mem")
    assert mem["resident_peak"] > 1 << 20
    assert "devices" not in mem, "nothing is said of them, and CUDA not initialized, before the job does"
    torch.cuda.initialize()
    monitor._allocator.send()
    mem = daemon.wait_for("mem", 2)[-1]
    assert list(mem["devices"]) == ["0"], "the other device is not this process's"
    figures = mem["devices"]["0"]
    assert (figures["allocated"], figures["reserved"], figures["retries"]) == (6 << 30, 8 << 30, 3)
    assert figures["total"] == 80 << 30 and "free" not in figures
    assert mem["pinned"] == 2 << 20
    hello = daemon.of("hello")[-1]
    assert hello["devices"] == {"0": {"uuid": "GPU-5f1d2a7c-0", "name": "Fake H100"}}


def test_running_out_of_memory_is_told(daemon, monitor, torch, tmp_path):
    monitor._allocator._folder = str(tmp_path / "new")
    monitor.start()
    monitor._allocator.observe()
    assert torch._C.observers == []
    torch.cuda.initialize()
    monitor._allocator.observe()
    monitor._allocator.observe()
    (observer,) = torch._C.observers
    observer(0, 2 << 30, 80 << 30, 1 << 30)
    (oom,) = daemon.wait_for("oom")
    assert (oom["device"], oom["requested"], oom["total"], oom["free"]) == ("0", 2 << 30, 80 << 30, 1 << 30)
    assert (oom["allocated"], oom["reserved"]) == (6 << 30, 8 << 30)
    assert open(oom["snapshot"], "rb").read() == b"snapshot"
    assert oom["expandable_segments"] is False


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128, expandable_segments: True"}, True),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, True),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, False),
        ({}, False),
    ],
)
def test_expandable_segments_are_known_from_the_environment(daemon, monitor, torch, monkeypatch, settings, expected):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    torch.cuda.initialize()
    monitor.start()
    monitor._allocator.failed(0, 2 << 30, 80 << 30, 1 << 30)
    (oom,) = daemon.wait_for("oom")
    assert oom["expandable_segments"] is expected


def test_a_checkpoint_is_asked_for_and_acknowledged(daemon, monitor, tmp_path):
    called = []
    before = signal.signal(signal.SIGUSR1, lambda *_: called.append(1))
    try:
        assert monitor.on_checkpoint_signal()
        assert not monitor.checkpoint_requested
        os.kill(os.getpid(), signal.SIGUSR1)
        assert monitor.checkpoint_requested and called == [1]
        monitor.step(120)
        with monitor.checkpoint(str(tmp_path / "a.pt")):
            assert monitor.checkpoint_requested
        assert not monitor.checkpoint_requested
        with pytest.raises(OSError):
            with monitor.checkpoint("b.pt", step=7):
                raise OSError
    finally:
        signal.signal(signal.SIGUSR1, before)
    told = [(message["state"], message["step"]) for message in daemon.wait_for("checkpoint", 4)]
    assert told == [("saving", 120), ("saved", 120), ("saving", 7), ("failed", 7)]
    assert daemon.of("checkpoint")[2]["path"] == os.path.abspath("b.pt")


def test_a_checkpoint_that_fails_is_told_without_predictions(daemon, monkeypatch):
    monkeypatch.setenv("MEMWARDEN_FIT", "off")
    with memwarden.Monitor(interval=0) as monitor, pytest.raises(OSError):
        with monitor.checkpoint("b.pt", step=7):
            raise OSError
    told = [(message["state"], message["step"]) for message in daemon.wait_for("checkpoint", 2)]
    assert told == [("saving", 7), ("failed", 7)]


def test_the_thread_of_the_monitor_loads_nothing(daemon, python):
    program = """
import sys, time, memwarden
monitor = memwarden.Monitor(interval=0.01)
def loaded():
    return {name for name in sys.modules if name.startswith("memwarden")}
before = loaded()
monitor.start()
while monitor._evidence._size is None:
    time.sleep(0.01)
assert loaded() == before, loaded() - before
"""
    python(program, auto="0", paths=[CLIENT])


def test_the_log_rotates(daemon, tmp_path):
    file = tmp_path / "log.jsonl"
    monitor = memwarden.Monitor(interval=0, min_interval=0, log_file=str(file), log_bytes=4096, log_files=3)
    for n in range(1000):
        monitor.step(n)
        if n % 10 == 0:
            monitor._session.log.write()
    monitor.stop()
    assert sorted(os.listdir(tmp_path)) == ["log.jsonl", "log.jsonl.1", "log.jsonl.2"]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[-1]["type"] == "bye"
    assert all(os.path.getsize(tmp_path / name) < 8192 for name in os.listdir(tmp_path))


def test_long_details_are_cut_and_said_to_be(daemon, monitor):
    monitor.record("big", {"n": ["x" * 500] * 900})
    monitor.record("longer than the daemon accepts", {"n": ["x" * 500] * 40})
    for event in daemon.wait_for("event", 2):
        assert event["detail"] == {"truncated": True}


class Api(http.server.BaseHTTPRequestHandler):
    findings = []

    def do_GET(self):
        assert self.path == "/api/v1/findings"
        body = json.dumps({"schema_version": 1, "findings": self.findings}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def finding(severity, **subject):
    return {"analyzer": "exhaustion", "subject": {"resource": "host", **subject}, "severity": severity}


def test_risks_reach_back(monitor, torch):
    torch.cuda.initialize()
    seen = []
    monitor.on_risk("warning", seen.append, interval=3600)
    ours, theirs = finding("warning", uuid="GPU-5f1d2a7c-0"), finding("critical", uuid="GPU-other")
    monitor._risks.dispatch([finding("info"), theirs, ours])
    assert seen == [ours]
    monitor._risks.dispatch([ours])
    assert seen == [ours], "once each"
    worse = finding("critical", uuid="GPU-5f1d2a7c-0")
    monitor._risks.dispatch([worse])
    monitor._risks.dispatch([])
    monitor._risks.dispatch([ours, finding("critical", pid="1"), finding("critical", pid=str(os.getpid()))])
    assert [each["severity"] for each in seen] == ["warning", "critical", "warning", "critical"]
    monitor.on_risk("critical", seen.append, everything=True, interval=3600)
    monitor._risks.dispatch([theirs])
    assert seen[-1] == theirs


def test_risks_are_asked_for_over_http(daemon, monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # A proxy is not for the daemon of this node.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    Api.findings = [finding("critical")]
    called = threading.Event()
    monitor = memwarden.Monitor(interval=0, url="http://127.0.0.1:%d" % server.server_address[1])
    monitor.on_risk("critical", lambda finding: called.set(), interval=0.1)
    assert called.wait(PATIENCE)
    monitor.stop()
    server.shutdown()


LAUNCHERS = [
    ({}, (0, 0, 1)),
    ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, (3, 1, 8)),
    ({"SLURM_PROCID": "5", "SLURM_LOCALID": "2", "SLURM_NTASKS": "16", "SLURM_STEP_ID": "0"}, (5, 2, 16)),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, (0, 0, 1)),
    ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, (2, 0, 4)),
    ({"PMI_RANK": "1", "MPI_LOCALRANKID": "1", "PMI_SIZE": "2"}, (1, 1, 2)),
    ({"RANK": "-1", "WORLD_SIZE": "x"}, (0, 0, 1)),
    ({"RANK": "9", "WORLD_SIZE": "4"}, (9, 0, 10)),
]


@pytest.mark.parametrize("environment, expected", LAUNCHERS)
def test_the_launcher_says_the_rank(environment, expected):
    assert memwarden.launcher_rank(environment) == expected


def test_what_is_asked_for_and_does_not_work_is_said_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(_base, "_said", set())
    missing = tmp_path / "no" / "folder"
    for _ in range(2):
        monitor = memwarden.Monitor(interval=0, socket_path=missing)
        monitor.step(1)
        assert monitor.on_risk("nosuch", print) is None
        logging = memwarden.Monitor(interval=0, log_file=missing / "run.jsonl", socket_path=missing)
        logging.step(1)
        logging.stop()
        monitor.stop()
    assert capsys.readouterr().err.splitlines() == [
        "memwarden: no daemon listens at %s: nothing is reported until one does" % missing,
        "memwarden: on_risk: there is no level 'nosuch'; levels: info, warning, critical",
        "memwarden: cannot write the log file %s: No such file or directory" % (missing / "run.jsonl"),
    ]


def test_a_daemon_that_listens_is_not_spoken_of(daemon, monitor, capsys, monkeypatch):
    monkeypatch.setattr(_base, "_said", set())
    monitor.step(1)
    daemon.wait_for("step")
    assert capsys.readouterr().err == ""
