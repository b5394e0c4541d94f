"""Cost of a step, in turns beside OpenTelemetry's SDK if it is installed, and cost of starting Python.

    python bench_step.py                          # a step, received by the daemon (--daemon, by default target/dist)
    python bench_step.py --start 50               # `python -c pass` with and without MEMWARDEN_AUTO
    python bench_step.py --train 10 -- ../../examples/train.py --steps 300 --threads 1
    python bench_step.py --loop 5000              # the time within the automatic hooks, in so many steps of a small model
    python bench_step.py --agree 30               # the model of examples/train.py, the agreement of ranks on a checkpoint on and off

OpenTelemetry: pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-common
"""

import argparse
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import memwarden

HERE = os.path.dirname(os.path.abspath(__file__))
GAUGES = 12


def listen(path, daemon):
    """Receives messages in a separate process: the daemon if it exists, otherwise a process that only reads."""
    if daemon and os.access(daemon, os.X_OK):
        config = os.path.join(os.path.dirname(path), "memwarden.yaml")
        with open(config, "w") as file:
            file.write("sources: {gpu: {enabled: false}, training: {socket: %s, messages_per_second: 100000}}\n" % path)
            file.write('web: {listen_addresses: ["127.0.0.1:0"]}\n')
        command = [daemon, "serve", "--config.file", config]
        receiver = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        for _ in range(500):
            if os.path.exists(path):
                return receiver.pid
            time.sleep(0.01)
        sys.exit("%s does not listen at %s" % (daemon, path))
    print("there is no %s: a process that only reads replaces it" % (daemon or "daemon"))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(8)
    pid = os.fork()
    if pid:
        listener.close()
        return pid
    while True:
        connection = listener.accept()[0]
        while connection.recv(1 << 16):
            pass


def ours(path):
    monitor = memwarden.Monitor("bench", rank=0, world=8, min_interval=0, socket_path=path)
    monitor.start()
    state = {"n": 0}

    def step():
        state["n"] = n = state["n"] + 1
        monitor.step(n, tokens=32768, samples=8, loss=2.317, learning_rate=3e-4, grad_norm=1.04)

    def end():
        dropped, connected = monitor.dropped, monitor.connected
        monitor.stop()
        return "dropped %d, connected %s" % (dropped, connected)

    return step, end


def phases(path):
    """Three phases and a step."""
    monitor = memwarden.Monitor("bench", min_interval=0, socket_path=path)
    monitor.start()
    state = {"n": 0}
    names = [monitor.phase(name) for name in ("forward", "backward", "optimizer")]

    def step():
        state["n"] = n = state["n"] + 1
        for phase in names:
            with phase:
                pass
        monitor.step(n, tokens=32768)

    return step, lambda: monitor.stop()


def predictions(path):
    """The hooks of a step that predict its memory, of a model in host memory; none where there is no PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    monitor = memwarden.Monitor("bench", min_interval=0, socket_path=path)
    monitor.start()
    fit, weight = monitor._fit, torch.nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.SGD([weight])
    fit.made(optimizer)

    def step():
        fit.forward_begins(8, 512)
        fit.forward_ends(None)
        fit.backward_ends()
        fit.before_step(optimizer)
        fit.after_step(optimizer)
        fit.step_ended()

    return step, lambda: monitor.stop()


def opentelemetry_step(path):
    try:
        from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    except ImportError:
        return None
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("bench")
    gauges = [meter.create_gauge("training.gauge%d" % n) for n in range(GAUGES)]
    about = {"rank": 0, "run": "bench"}

    def step():
        for n, gauge in enumerate(gauges):
            gauge.set(n + 0.5, about)
        encode_metrics(reader.get_metrics_data()).SerializeToString()

    return step, lambda: None


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def leave(listener, path):
    os.kill(listener, signal.SIGKILL)
    os.waitpid(listener, 0)
    shutil.rmtree(os.path.dirname(path))


def bench_steps(steps, daemon):
    folder = tempfile.mkdtemp(prefix="mw")
    path = os.path.join(folder, "s")
    listener = listen(path, daemon)
    contenders = {"memwarden step": ours(path), "memwarden step and 3 phases": phases(path)}
    more = {"predictions of a step": predictions, "OpenTelemetry SDK, %d gauges set and encoded" % GAUGES: opentelemetry_step}
    for name, make in more.items():
        made = make(path)
        if made is not None:
            contenders[name] = made
    times = {name: [] for name in contenders}
    clock = time.perf_counter
    for _ in range(500):
        for step, _ in contenders.values():
            step()
    # In turns, with a little work between steps, like a training loop.
    for _ in range(steps):
        for name in random.sample(list(contenders), len(contenders)):
            step = contenders[name][0]
            begun = clock()
            step()
            times[name].append(clock() - begun)
        sum(range(200))
    for name, values in times.items():
        figures = (statistics.mean(values) * 1e6, *(quantile(values, share) * 1e6 for share in (0.5, 0.9, 0.99)))
        end = contenders[name][1]()
        print("%-46s mean %6.1f us  p50 %7.1f us  p90 %7.1f us  p99 %7.1f us  %s" % (name, *figures, end or ""))
    leave(listener, path)


def environment(on):
    env = {key: value for key, value in os.environ.items() if not key.startswith("MEMWARDEN")}
    env.pop("PYTHONPATH", None)
    if on:
        env.update(MEMWARDEN_AUTO="1", PYTHONPATH=os.path.join(HERE, "memwarden", "auto"))
    return env


def compare(command, rounds, seconds_of):
    """In turns and in random order, so that load of the machine affects both equally."""
    taken = {True: [], False: []}
    for _ in range(rounds):
        for on in random.sample([True, False], 2):
            env = environment(on)
            taken[on].append(seconds_of(command, env))
    return taken[False], taken[True]


def wall(command, env):
    begun = time.perf_counter()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def processor(command, env):
    """CPU seconds: other programs on the machine change them less than elapsed time."""
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime


def example_step():
    """A function that takes one training step of the model of examples/train.py."""
    import importlib.util

    import torch
    from torch.nn import functional as F

    spec = importlib.util.spec_from_file_location("train", os.path.join(HERE, "../../examples/train.py"))
    train = importlib.util.module_from_spec(spec)
    sys.modules["train"] = train
    spec.loader.exec_module(train)
    torch.set_num_threads(1)
    model = train.GPT(train.Config())
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.zeros(16, 64, dtype=torch.long)

    def step():
        loss = F.cross_entropy(model(data).flatten(0, 1), data.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def bench_agreement(rounds, daemon, block=50):
    """Blocks of steps in one process, with a real store and a thread that polls it; CPU seconds of the whole process."""
    import datetime

    from memwarden import _agreement
    from torch.distributed import TCPStore

    folder = tempfile.mkdtemp(prefix="mw")
    path = os.path.join(folder, "s")
    listener = listen(path, daemon)
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=datetime.timedelta(seconds=10), wait_for_workers=False)
    _agreement.default_store = lambda: (store, 2)
    monitor = memwarden.Monitor("bench", rank=0, world=2, socket_path=path)
    monitor.start()
    train = example_step()

    def steps():
        begun = time.process_time()
        for _ in range(block):
            train()
            monitor.step()
        return (time.process_time() - begun) / block

    def measure(on):
        if on:
            checkpoints.take_part()
        taken = steps()
        checkpoints.agreement = None
        # The thread of the agreement ends and begins with each block.
        monitor._session.ends.set()
        checkpoints._worker.join(60)
        monitor._session._begin()
        return taken

    checkpoints = monitor._checkpoints
    taken = {True: [], False: []}
    steps()
    for _ in range(rounds):
        for on in random.sample([True, False], 2):
            taken[on].append(measure(on))
    show("a step, CPU", taken[False], taken[True], "ms", 1000)
    agreement = _agreement._Agreement(lambda *_: None)
    begun = time.perf_counter()
    for n in range(100000):
        agreement.boundary(n)
    print("the check of a step: %.3f us" % ((time.perf_counter() - begun) * 10))
    # Without training, the CPU time of the process is that of its threads, which is less noisy than a difference.
    idle = {}
    for on in (False, True):
        if on:
            checkpoints.take_part()
        begun = time.process_time()
        time.sleep(20)
        idle[on] = (time.process_time() - begun) / 20
    print("the thread: %.3f ms of CPU a second" % ((idle[True] - idle[False]) * 1000))
    monitor.stop()
    leave(listener, path)


def bench_loop(steps, daemon):
    """The time within each automatic hook, and of all in a step, in steps of about 1 ms. A median of short times says the same on a busy
    machine; the difference of two loops does not."""
    import collections

    import torch
    import torch.utils.data

    inner, taken, clock = {}, collections.Counter(), time.perf_counter

    def timed(function, name, within=None):
        def call(*args, **kwargs):
            begun = clock()
            try:
                return function(*args, **kwargs)
            finally:
                if within is None:
                    inner[name] = clock() - begun
                else:
                    taken[name] += clock() - begun - within.get(name, 0.0)

        return call

    folder = tempfile.mkdtemp(prefix="mw")
    path = os.path.join(folder, "s")
    listener = listen(path, daemon)
    os.environ.update(MEMWARDEN_AUTO="1", MEMWARDEN_JOB_SOCKET=path)
    torch.set_num_threads(1)
    places = ((torch.autograd, "backward"), (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"))
    for owner, name in places:
        setattr(owner, name, timed(getattr(owner, name), name))
    from memwarden import _auto

    _auto.start_auto()
    nn = torch.nn
    layers = [layer for _ in range(3) for layer in (nn.GELU(), nn.Linear(64, 64))]
    model = nn.Sequential(nn.Linear(32, 64), *layers, nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(4096, 32), torch.randint(0, 10, (4096,)))

    def batches():
        while True:
            yield from torch.utils.data.DataLoader(data, batch_size=8)

    source = batches()

    def step():
        given, wanted = next(source)
        nn.functional.cross_entropy(model(given), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(300):
        step()
    hooks = [(each._forward_pre_hooks, "before forward") for each in model.modules()]
    hooks += [(each._forward_hooks, "after forward") for each in model.modules()]
    of_optimizers = __import__("torch.optim.optimizer", fromlist=["Optimizer"])
    hooks.append((of_optimizers._global_optimizer_pre_hooks, "before optimizer"))
    hooks.append((of_optimizers._global_optimizer_post_hooks, "after optimizer"))
    for each, name in hooks:
        for key in list(each):
            each[key] = timed(each[key], name, {})
    for owner, name in places:
        setattr(owner, name, timed(getattr(owner, name), name, inner))
    rows, empty = [], timed(lambda: None, "nothing", {})
    for _ in range(steps):
        taken.clear()
        begun = clock()
        step()
        empty()
        row = dict(taken, step=clock() - begun)
        nothing = row.pop("nothing")
        rows.append({name: value - nothing * (name != "step") for name, value in row.items()})
        rows[-1]["all hooks"] = sum(value for name, value in rows[-1].items() if name != "step")
    for name in rows[0]:
        values = [row[name] * 1e6 for row in rows]
        print("%-18s p50 %7.1f us  p95 %7.1f us" % (name, quantile(values, 0.5), quantile(values, 0.95)))
    _auto._watch.monitor.stop()
    leave(listener, path)


def show(name, off, on, unit, scale):
    fewest = min(on) - min(off)
    differences = statistics.median(b - a for a, b in zip(off, on))
    print(
        "%-12s without %8.3f %s  with %8.3f %s (medians); difference of medians %+.3f %s, of the fastest %+.3f %s "
        "(%+.2f %%), median of pairs %+.3f %s (%+.2f %%)"
        % (
            name,
            statistics.median(off) * scale,
            unit,
            statistics.median(on) * scale,
            unit,
            (statistics.median(on) - statistics.median(off)) * scale,
            unit,
            fewest * scale,
            unit,
            fewest / min(off) * 100,
            differences * scale,
            unit,
            differences / statistics.median(off) * 100,
        )
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--start", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--train", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--loop", type=int, default=0, metavar="STEPS")
    parser.add_argument("--agree", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--daemon", default=os.path.join(HERE, "../../target/dist/memwarden"), help="the receiving daemon")
    parser.add_argument("command", nargs="*")
    args = parser.parse_args()
    if args.start:
        for name, take in (("start, wall", wall), ("start, CPU", processor)):
            show(name, *compare([sys.executable, "-c", "pass"], args.start, take), "ms", 1000)
    elif args.agree:
        bench_agreement(args.agree, args.daemon)
    elif args.loop:
        bench_loop(args.loop, args.daemon)
    elif args.train:
        show("train, CPU", *compare([sys.executable, *args.command], args.train, processor), "s", 1)
    else:
        bench_steps(args.steps, args.daemon)


if __name__ == "__main__":
    main()
