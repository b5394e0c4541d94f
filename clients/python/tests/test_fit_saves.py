"""Where saves write, and what that takes, with a torch whose allocator the test moves."""

import os
import shutil
import tempfile

import pytest
from fit_program import GIB, MIB, Program, prediction
from memwarden import _fit_plan

MOUNTS = """\
24 1 254:1 / / rw,relatime - ext4 /dev/root rw
25 24 0:22 / /dev rw - devtmpfs devtmpfs rw
26 25 0:23 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw
27 24 0:24 / /scratch/my\\040cache rw - tmpfs none rw,size=4g
28 24 0:25 / /data rw - tmpfs none rw
29 24 254:2 / /data rw - xfs /dev/sdb rw
"""


@pytest.fixture
def mounts(tmp_path, monkeypatch):
    """The mounts above, in the place of those of this machine."""
    (tmp_path / "mountinfo").write_text(MOUNTS)
    monkeypatch.setattr(_fit_plan, "MOUNTS", str(tmp_path / "mountinfo"))


@pytest.mark.parametrize(
    "path, expected",
    [
        ("/dev/shm", True),
        ("/dev/shm/run/checkpoint-10", True),
        ("/dev/shmx", False),
        ("/scratch/my cache/run", True),
        ("/scratch/other", False),
        ("/data/run", False),
        ("/home/run", False),
    ],
)
def test_files_of_a_tmpfs_are_memory(mounts, path, expected):
    assert _fit_plan.is_in_memory(path) == expected


def test_mounts_that_cannot_be_read_are_no_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(_fit_plan, "MOUNTS", str(tmp_path / "none"))
    assert not _fit_plan.is_in_memory("/dev/shm")
    (tmp_path / "none").write_text("1 2\n - \n")
    assert not _fit_plan.is_in_memory("/dev/shm")


def saved(program, folder):
    """A model of 4 MiB with a state of 8 MiB that is saved to a folder."""
    model = program.torch.nn.Module(weight=program.weight)
    program.fit.plan.model(model, lambda: [program.optimizer])
    program.step(4, 16)
    program.monitor.checkpoint_saving(folder, 1)
    program.monitor.checkpoint_saved(folder, 1)
    program.fit.refresh()


def test_a_save_to_a_tmpfs_takes_memory_of_the_host_for_its_files(mounts, daemon, monitor, torch, monkeypatch):
    program = Program(torch, monitor)
    monkeypatch.setattr(os.path, "isdir", lambda path: True)
    monkeypatch.setattr(os.path, "realpath", str)
    saved(program, "/dev/shm/run/last")
    found = prediction(daemon, "save", resource="shm")
    assert found["peak"] == 12 * MIB and program.fit.plan.folder == "/dev/shm/run"
    host = program.fit.predictions.of("save", None)
    assert host["basis"].endswith(", files of 12.0 MiB in memory")
    # The interpreter may free a page meanwhile.
    least = 12 * MIB - 64 * 1024
    assert least <= host["peak"] - host["held"] and least <= host["measured"] - host["held"] < 20 * MIB


def test_a_save_to_a_disk_takes_none(mounts, daemon, monitor, torch, monkeypatch):
    program = Program(torch, monitor)
    monkeypatch.setattr(os.path, "isdir", lambda path: True)
    saved(program, "/data/run/last")
    assert prediction(daemon, "save", resource="disk")["peak"] == 12 * MIB
    host = program.fit.predictions.of("save", None)
    assert "in memory" not in host["basis"] and host["peak"] - host["held"] < 12 * MIB


def test_parameters_that_are_gathered_within_a_step_do_not_change_the_files(mounts, monitor, torch):
    program = Program(torch, monitor)
    model = torch.nn.Module(weight=program.weight)
    program.fit.plan.model(model, lambda: [program.optimizer])
    program.fit.plan._saved = "/data/run", 1
    program.step(4, 16)
    model._parameters["weight"] = torch.Tensor([0.0], (8192, 1024), device="cuda:0")
    program.fit.plan_phases()
    assert program.fit.predictions.of("save", "disk")["peak"] == 12 * MIB


def test_a_link_to_a_tmpfs_is_one(monitor, torch, tmp_path):
    if not _fit_plan.is_in_memory("/dev/shm"):
        pytest.skip("/dev/shm is not a tmpfs here")
    program = Program(torch, monitor)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        (tmp_path / "run").symlink_to(folder)
        (tmp_path / "run" / "last").mkdir()
        saved(program, tmp_path / "run" / "last")
        assert program.fit.plan.in_memory == 12 * MIB and program.fit.predictions.of("save", "shm")


def test_the_folder_is_that_of_the_largest_file(tmp_path):
    plan = _fit_plan.Plan()
    for folder, size in (("one", 10), ("two", 1000), ("three", 20)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_bytes(b"x" * size)
        plan.saved(tmp_path / folder / "file")
    plan.saved("s3://bucket/key")
    assert plan.moved() and plan._resolved[0] == str(tmp_path / "two") and not plan.moved()


def test_a_save_that_fails_is_not_learned_and_the_next_one_is(monitor, torch, tmp_path):
    program = Program(torch, monitor)
    program.step(4, 16)
    with pytest.raises(OSError):
        with monitor.checkpoint(tmp_path, 1):
            raise OSError("no space left on device")
    assert not program.fit._saves.runs and "measured" not in program.fit.predictions.of("save", None)
    with monitor.checkpoint(tmp_path, 2):
        pass
    assert "measured" in program.fit.predictions.of("save", None)


def test_a_save_is_predicted_and_learned(daemon, monitor, torch):
    program = Program(torch, monitor)
    model = torch.nn.Module(weight=program.weight)
    program.fit.plan.model(model, lambda: [program.optimizer])
    program.step(4, 16)
    # A program of its own may never save, or write to memory first.
    host = prediction(daemon, "save", resource="host")
    assert host["least"] and not program.fit.predictions.of("save", "disk")
    program.fit.plan._saved = "/data/run", 1
    program.fit.plan_phases()
    disk = prediction(daemon, "save", resource="disk")
    assert disk["held"] == 0 and disk["peak"] == 4 * MIB + 8 * MIB
    # From a device, safetensors copies all, and torch.save one tensor.
    assert "least" not in program.fit.predictions.of("save", None)
    assert abs(host["peak"] - host["held"] - 8 * MIB) <= MIB
    with monitor.checkpoint("/tmp/x", 1):
        pass
    learned = prediction(daemon, "save", resource="host", step=1, certainty="estimated")
    daemon.wait(lambda daemon: any("measured" in each for each in daemon.of("prediction") if each["phase"] == "save"))
    assert learned["resource"] == "host"


def test_what_is_free_for_a_save_is_stated(daemon, monitor, torch, tmp_path):
    program = Program(torch, monitor)
    model = torch.nn.Module(weight=program.weight)
    program.fit.plan.model(model, lambda: [program.optimizer])
    program.fit.plan._saved = "/nothing", 1
    program.step(4, 16)
    messages = program.fit.predictions.messages
    messages["save", "disk", None].pop("free", None)
    program.fit.plan.folder = str(tmp_path / "not" / "yet" / "there")
    before = program.fit.predictions.sequence
    program.fit.refresh()
    # With what is free there is another verdict, which the line waits for.
    assert program.fit.predictions.sequence > before and program.fit.verdicts._line_after == program.fit.predictions.sequence
    found = program.fit.predictions.messages[("save", "disk", None)]
    assert abs(found["free"] - shutil.disk_usage(tmp_path).free) <= GIB
    daemon.wait(lambda daemon: any("free" in each for each in daemon.of("prediction")))
    before = len(daemon.of("prediction"))
    program.fit.predictions.state_free(program.fit.plan.folder)
    assert program.fit.predictions.messages[("save", "disk", None)] == found and len(daemon.of("prediction")) == before


def test_a_folder_that_cannot_be_asked_has_no_free_bytes(monkeypatch):
    assert _fit_plan.free_of("") is None
    assert _fit_plan.free_of("/proc/self/cmdline/x") is not None
    monkeypatch.setattr("os.statvfs", lambda path: (_ for _ in ()).throw(PermissionError()))
    assert _fit_plan.free_of("/") is None
