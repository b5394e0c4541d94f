"""The parts with PyTorch: python3 torch_parts.py leak|fragmentation|oom|energy|protection cuda|cpu

On a CPU, which is for tests of this file, only what does not need a GPU is judged.
"""

import glob
import json
import os
import signal
import subprocess
import time

import torch

from common import FOLDER, MIB, PACE, get, metrics, run, value, wait

DEVICE = int(os.environ.get("GPU_RUN_DEVICE", "0"))
ALLOCATOR = "memwarden_training_allocator_"


def place(device):
    return torch.device("cuda", DEVICE) if device == "cuda" else torch.device("cpu")


class Training:
    """A small model, so that what it needs is little beside what the parts allocate."""

    def __init__(self, device):
        torch.manual_seed(0)
        self.device = device
        self.model = torch.nn.Sequential(
            torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
        ).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self, batch=64):
        data = torch.randn(batch, 512, device=self.device)
        loss = (self.model(data) - data).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss


def gpu_of_this_process():
    """The daemon's index of the GPU of this process's allocator; None while it does not know it."""
    found = [labels["gpu"] for name, labels, _ in metrics() if name == ALLOCATOR + "reserved_bytes"]
    return found[0] if found and found[0] else None


def own(name, page):
    """A metric of this process's allocator; there is one rank here."""
    return value(name, page)


def stats():
    """PyTorch's figures under the names of the metrics."""
    known = torch.cuda.memory_stats(DEVICE)
    names = {
        "allocated_bytes": "allocated_bytes.all.current",
        "reserved_bytes": "reserved_bytes.all.current",
        "active_bytes": "active_bytes.all.current",
        "inactive_split_bytes": "inactive_split_bytes.all.current",
        "requested_bytes": "requested_bytes.all.current",
    }
    return {name: known[key] for name, key in names.items() if key in known}


def compare_allocator(result, what):
    """While nothing is allocated: the daemon's figures become PyTorch's."""
    expected = stats()

    def same():
        page = metrics()
        said = {name: own(ALLOCATOR + name, page) for name in expected}
        return said if said == {name: float(figure) for name, figure in expected.items()} else None

    found = wait(same, 10)
    page = metrics()
    for name, figure in expected.items():
        said = own(ALLOCATOR + name, page)
        result.check("%s: %s%s" % (what, ALLOCATOR, name), found is not None or said == figure,
                     "%s; PyTorch %s" % (said, figure))


def leak(result, device):
    import memwarden

    training = Training(place(device))
    kept, number, begun = [], 0, time.monotonic()
    size = 8 * MIB
    with memwarden.Monitor("gpu-run-leak") as monitor:
        rates = []
        while time.monotonic() - begun < 40 * PACE:
            number += 1
            training.step()
            # Filled, so that on a CPU the pages exist too.
            kept.append(torch.ones(size // 4, dtype=torch.float32, device=training.device))
            if len(kept) * size > 2048 * MIB:
                break
            monitor.step(number, tokens=64)
            time.sleep(0.1)
        seconds = time.monotonic() - begun
        rates.append(len(kept) * size / seconds)
        steps = wait(lambda: value("memwarden_training_steps_total") == number or None, 10)
        result.check("memwarden_training_steps_total", steps, "%s; made %d" % (value("memwarden_training_steps_total"), number))
        if device == "cuda":
            torch.cuda.synchronize()
            compare_allocator(result, "while it leaks")
        growth = [number for name, labels, number in metrics()
                  if name == "memwarden_leak_growth_bytes_per_second" and number > rates[0] / 2]
        near = [found for found in growth if abs(found / rates[0] - 1) < 0.25]
        result.check("growth of one of the process's resources", bool(near),
                     "%s MiB/s; leaked %.1f MiB/s; within a quarter" % ([round(found / MIB, 1) for found in growth], rates[0] / MIB))
        findings = json.loads(get("/api/v1/findings"))["findings"]
        ours = [finding for finding in findings if finding["analyzer"] in ("leak", "exhaustion")]
        result.figures["findings"] = [finding["summary"] for finding in ours]
        result.check("a finding of the analyzer leak", any(f["analyzer"] == "leak" for f in ours), "%d" % len(ours))
    return "%.0f MiB kept in %d steps" % (len(kept) * size / MIB, number)


def fragmentation(result, device):
    import memwarden

    torch.cuda.memory._record_memory_history(max_entries=10000)
    training = Training(place(device))
    with memwarden.Monitor("gpu-run-fragmentation") as monitor:
        training.step()
        # Blocks of 4 MiB share segments of 20 MiB: freeing every second one leaves gaps that cannot be released.
        blocks = [torch.empty(4 * MIB, dtype=torch.uint8, device=training.device) for _ in range(100)]
        del blocks[::2]
        torch.cuda.synchronize()
        monitor.step(1, tokens=64)
        compare_allocator(result, "fragmented")
        known = stats()
        path = os.path.join(FOLDER, "fragmented.pickle")
        torch.cuda.memory._dump_snapshot(path)
        output = subprocess.run([os.environ["GPU_RUN_MEMWARDEN"], "snapshot", path, "--format", "json"],
                                stdout=subprocess.PIPE, timeout=30)
        devices = json.loads(output.stdout)["snapshots"][0]["devices"]
        totals = [found for found in devices if found["device"] == DEVICE][0]
        for name, figure in known.items():
            result.check("memwarden snapshot: " + name, totals.get(name) == figure, "%s; PyTorch %s" % (totals.get(name), figure))
        segments = torch.cuda.memory_snapshot()
        ours = [segment for segment in segments if segment["device"] == DEVICE]
        result.check("memwarden snapshot: segments", totals["segments"] == len(ours), "%s; PyTorch %d" % (totals["segments"], len(ours)))
        largest = max((block["size"] for segment in ours for block in segment["blocks"] if block["state"] == "inactive"), default=0)
        result.check("memwarden snapshot: largest_free_bytes", totals["largest_free_bytes"] >= largest,
                     "%s; PyTorch's largest block %s" % (totals["largest_free_bytes"], largest))
        result.figures["inactive split, MiB"] = known.get("inactive_split_bytes", 0) / MIB
        result.check("the program fragmented its memory", known.get("inactive_split_bytes", 0) > 50 * MIB,
                     "%s bytes; an allocator with expandable segments reports none" % known.get("inactive_split_bytes"))
        del blocks
    return "%.0f MiB inactive split" % (known.get("inactive_split_bytes", 0) / MIB)


def oom(result, device):
    """Not a line of memwarden: the environment instruments it."""
    training = Training(place(device))
    for _ in range(5):
        training.step()
        time.sleep(0.1)
    free, _ = torch.cuda.mem_get_info(DEVICE)
    try:
        # One request that cannot be met, which takes no memory from others.
        torch.empty(free + 1024 * MIB, dtype=torch.uint8, device=training.device)
        result.check("CUDA refuses more than is free", False, "it did not")
    except torch.cuda.OutOfMemoryError as error:
        result.check("CUDA refuses more than is free", True, str(error).split(".")[0])
    # The allocator is read once a second.
    count = torch.cuda.memory_stats(DEVICE)["num_ooms"]
    seen = wait(lambda: value(ALLOCATOR + "ooms_total") == count or None, 15)
    result.check(ALLOCATOR + "ooms_total", seen, "%s; PyTorch num_ooms %s" % (value(ALLOCATOR + "ooms_total"), count))
    told = wait(lambda: (value("memwarden_training_ooms_total") or 0) >= 1 or None, 10)
    result.check("memwarden_training_ooms_total", told, str(value("memwarden_training_ooms_total")))
    steps = wait(lambda: (value("memwarden_training_steps_total") or 0) >= 5 or None, 10)
    result.check("steps of a program without a line of memwarden", steps, str(value("memwarden_training_steps_total")))
    files = wait(lambda: glob.glob(os.path.join(FOLDER, "*.pickle")), 5)
    result.check("the snapshot at the error", files, str(files))
    return "%s errors" % count


def energy(result, device):
    import memwarden

    # Multiplications large enough that the GPU draws power.
    size, tokens = 4096, 4096
    left = torch.randn(size, size, device=place(device), dtype=torch.float16)
    with memwarden.Monitor("gpu-run-energy") as monitor:
        joules = "memwarden_gpu_energy_joules_total"
        monitor.step(0, tokens=0)
        gpu = wait(gpu_of_this_process, 15) or "0"

        def counters():
            page = metrics()
            return value(joules, page, gpu=gpu), value("memwarden_training_tokens_total", page)

        readings, number, begun = [], 0, time.monotonic()
        while time.monotonic() - begun < 35 * PACE:
            number += 1
            for _ in range(50):
                left = torch.matmul(left, left).clamp_(-1, 1)
            torch.cuda.synchronize()
            monitor.step(number, tokens=tokens)
            if number % 20 == 0 and None not in counters():
                readings.append((time.monotonic(),) + counters())
        said = value("memwarden_training_energy_per_token_joules")
        if len(readings) < 3 or readings[0][1] is None:
            result.not_judged("joules for each token", "the GPU has no counter of energy")
            return "no counter of energy"
        # The daemon's value is over the last 30 s at most.
        newest = readings[-1]
        since = [reading for reading in readings if newest[0] - reading[0] <= 30][0]
        spent, made = newest[1] - since[1], newest[2] - since[2]
        other = spent / made if made else float("nan")
        result.check("memwarden_training_energy_per_token_joules", said is not None and abs(said / other - 1) < 0.2,
                     "%s; the driver's counter over the job's tokens %s; within a fifth" % (said, other))
        watts = spent / (newest[0] - since[0])
        power = value("memwarden_gpu_power_watts", gpu=gpu) or float("nan")
        result.check("energy beside power", abs(watts / power - 1) < 0.3,
                     "%.0f W by the counter; %.0f W; within 30 %%" % (watts, power))
    return "%.3g J a token" % other


def protection(result, device):
    import memwarden

    training = Training(place(device))
    path = os.path.join(FOLDER, "model.pt")
    grow = int(float(os.environ.get("GPU_RUN_GROW", "0")))
    step_size = max(2 * MIB, grow // 60)
    with memwarden.Monitor("gpu-run-protection") as monitor:
        result.check("a handler of USR1", monitor.on_checkpoint_signal(), "")
        training.step()
        pid = str(os.getpid())
        if device == "cuda" and not wait(lambda: value("memwarden_gpu_process_memory_bytes", pid=pid), 8):
            result.not_judged("protection by the level of a GPU", "NVML does not list this process under its pid")
            return "NVML does not list this process"
        cache, number, saved, begun = [], 0, None, time.monotonic()
        while time.monotonic() - begun < 45 and (saved is None or number < saved + 20):
            number += 1
            loss = training.step()
            if device == "cuda" and saved is None and len(cache) * step_size < grow:
                cache.append(torch.empty(step_size, dtype=torch.uint8, device=training.device))
            monitor.step(number, tokens=64)
            if device == "cpu" and number == 20:
                # Without a GPU there is no level that could be crossed.
                os.kill(os.getpid(), signal.SIGUSR1)
            if saved is None and monitor.checkpoint_requested:
                with monitor.checkpoint(path):
                    torch.save({"model": training.model.state_dict(), "step": number}, path)
                saved = number
                before = [parameter.detach().clone() for parameter in training.model.parameters()]
                released = len(cache) * step_size
                cache.clear()
                # A job that begins again from its checkpoint.
                training = Training(place(device))
                state = torch.load(path, map_location=training.device)
                training.model.load_state_dict(state["model"])
                same = all(torch.equal(one, other) for one, other in zip(before, training.model.parameters()))
                result.check("the checkpoint has what was trained", same and state["step"] == number, "step %d" % number)
                if device == "cuda":
                    torch.cuda.empty_cache()
            time.sleep(0.1)
        result.check("a checkpoint was requested and saved", saved is not None, "at step %s of %d" % (saved, number))
        if saved is None:
            return "no request came"
        state = wait(lambda: value("memwarden_training_checkpoint_state", state="saved") == 1 or None, 10)
        result.check("memwarden_training_checkpoint_state", state, "saved")
        if device == "cuda":
            ok = wait(lambda: max(value("memwarden_protection_state", state=name) or 0 for name in ("ok", "cooldown")) == 1 or None, 20)
            result.check("protection returns to ok", ok, "after %.0f MiB were released" % (released / MIB))
        else:
            result.not_judged("protection by the level of a GPU", "there is no GPU for PyTorch here")
        killed = [labels for name, labels, count in metrics()
                  if name == "memwarden_protection_steps_total" and labels["step"] in ("term", "kill") and count > 0]
        result.check("the job went on, and nothing was terminated", number >= saved + 20 and not killed,
                     "%d steps after the checkpoint; loss %.4f" % (number - saved, float(loss)))
    return "checkpoint at step %d, release, resume" % saved


run({"leak": leak, "fragmentation": fragmentation, "oom": oom, "energy": energy, "protection": protection})
