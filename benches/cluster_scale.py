#!/usr/bin/env python3
"""Cost of a cluster on a real Prometheus: series, rules, `memwarden cluster` and the queries of the dashboards.

    cargo build && benches/cluster_scale.py --memwarden target/debug/memwarden --library target/debug/libfake_nvml.so --nodes 100 1000

The page of one real daemon (8 GPUs on the fake driver, each with one rank of a run) is served once for each node by one
process, with the names and ranks of each node, eight nodes a run. Only the metrics that the rules, the dashboards and
`memwarden cluster` read are served: the number of series of a whole page is printed beside. Every hundredth node runs out of
memory. Prometheus scrapes each node every 15 s for --minutes, with the rules of alerts/. Standard library only.
"""

import argparse
import collections
import http.server
import json
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
NODES_OF_A_RUN = 8
INTERVAL = 15


def fetch(url):
    with urllib.request.urlopen(url, timeout=120) as answer:
        return answer.read().decode()


def read_names():
    """Metrics that the rules, the dashboards and `memwarden cluster` read."""
    files = [*ROOT.glob("alerts/*.yaml"), *ROOT.glob("dashboards/*.json"), *ROOT.glob("src/cluster/*.rs")]
    return {name for file in files for name in re.findall(r"\bmemwarden_[a-z0-9_]+", file.read_text())}


def page_of(args):
    """The page of a real daemon, as lines."""
    command = [sys.executable, ROOT / "tests/page/scene.py", "training", "--memwarden", args.memwarden, "--library", args.library]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as scene:
        url = json.loads(scene.stdout.readline())["url"]
        time.sleep(30)
        text = fetch(url + "/metrics")
        scene.stdin.close()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


class Node:
    """The page of a node, with places for what differs."""

    def __init__(self, lines):
        text = "\n".join(lines) + "\n"
        text = re.sub(r'run="[^"]+"', 'run="\x00"', text)
        text = re.sub(r'(?<![a-z_])rank="(\d+)"', 'rank="\x01\\1\x01"', text)
        self.text = re.sub(r'world="\d+"', 'world="%d"' % (8 * NODES_OF_A_RUN), text)
        self.text = re.sub(r"(?m)^(memwarden_training_world_size\S* ).*$", r"\g<1>%d" % (8 * NODES_OF_A_RUN), self.text)

    def page(self, number, passed):
        first = number % NODES_OF_A_RUN * 8
        text = self.text.replace("\x00", "run-%d" % (number // NODES_OF_A_RUN))
        text = re.sub("\x01(\\d+)\x01", lambda rank: str(first + int(rank[1])), text)
        text = re.sub(r"(?m)^(memwarden_frames_total\S* ).*$", r"\g<1>%d" % passed, text)
        if number % 100 == 0:
            gpu = re.search(r'memwarden_gpu_memory_used_bytes\{([^}]*)\}', text)[1]
            labels = 'resource="gpu",' + gpu
            left = max(30, 1800 - passed)
            for estimate, factor in (("p10", 0.8), ("p50", 1.0), ("p90", 1.5)):
                text += 'memwarden_forecast_time_to_exhaustion_seconds{%s,estimate="%s"} %f\n' % (labels, estimate, left * factor)
        return text.encode()


def serve(node):
    began = time.time()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            body = node.page(int(self.path.strip("/")), time.time() - began)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
            except BrokenPipeError:
                pass  # a scrape that took too long

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def value(base, query):
    result = json.loads(fetch(base + "/api/v1/query?" + urllib.parse.urlencode({"query": query})))["data"]["result"]
    return float(result[0]["value"][1]) if result else None


def queries(board):
    """The expressions of a dashboard, for all nodes and runs."""
    found = []

    def walk(part):
        if isinstance(part, dict):
            if isinstance(part.get("expr"), str):
                found.append(part["expr"])
            part = list(part.values())
        if isinstance(part, list):
            for each in part:
                walk(each)

    walk(json.loads((ROOT / "dashboards" / board).read_text()).get("panels", []))
    fill = lambda text: re.sub(r"\$\{?(\w+)(:\w+)?\}?", lambda name: "1m" if name[1].startswith("__") else ".*", text)
    return [fill(text).replace('=".*"', '=~".*"') for text in found]


def measure(args, lines, nodes, folder):
    server = serve(Node(lines))
    port = server.server_address[1]
    targets = [{"targets": ["127.0.0.1:%d" % port], "labels": {"instance": "node%d" % n, "__metrics_path__": "/%d" % n}}
               for n in range(nodes)]
    configuration = {
        "global": {"scrape_interval": "%ds" % INTERVAL, "evaluation_interval": "%ds" % INTERVAL},
        "rule_files": [str(file) for file in sorted(ROOT.glob("alerts/*rules.yaml"))],
        "scrape_configs": [{"job_name": "memwarden", "static_configs": targets}],
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(configuration))
    shutil.rmtree(folder / "data", ignore_errors=True)
    with open(folder / "log", "wb") as log:
        prometheus = subprocess.Popen([args.prometheus, "--config.file=%s" % file, "--storage.tsdb.path=%s/data" % folder,
                                       "--web.listen-address=127.0.0.1:19190", "--log.level=warn"], stdout=log, stderr=log)
    base = "http://127.0.0.1:19190"
    try:
        time.sleep(60 * args.minutes)
        up = value(base, "count(up == 1)")
        metrics = collections.defaultdict(dict)
        for line in fetch(base + "/metrics").splitlines():
            found = re.match(r'(\w+?)(?:\{(.*)\})? (\S+)$', line)
            if found:
                metrics[found[1]][found[2] or ""] = float(found[3])
        groups = {re.search(r';([^"]+)"', labels)[1]: seconds
                  for labels, seconds in metrics["prometheus_rule_group_last_duration_seconds"].items()}
        status = pathlib.Path("/proc/%d/status" % prometheus.pid).read_text()
        print("\n%d nodes, %.0f of them scraped: %.0f series, Prometheus has %.1f GiB of resident memory" % (
            nodes, up or 0, metrics["prometheus_tsdb_head_series"][""], int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / (1 << 20)))
        print("rules, seconds for one evaluation of a group every %d s:" % INTERVAL)
        for name, seconds in sorted(groups.items(), key=lambda each: -each[1]):
            print("  %-28s %8.3f" % (name, seconds))
        print("  %-28s %8.3f" % ("all", sum(groups.values())))
        rules = [rule for group in json.loads(fetch(base + "/api/v1/rules"))["data"]["groups"] for rule in group["rules"]]
        print("the slowest rules:")
        for rule in sorted(rules, key=lambda rule: -rule["evaluationTime"])[:8]:
            print("  %-72s %8.3f" % (rule["name"], rule["evaluationTime"]))
        failed = sum(metrics["prometheus_rule_evaluation_failures_total"].values())
        print("  evaluations that failed: %.0f" % failed)
        began, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([args.memwarden, "cluster", "--prometheus", base], stdout=subprocess.PIPE, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        print("memwarden cluster: %.2f s, of which %.2f s processor time of its own; exit code %d; %s" % (
            time.time() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.returncode,
            (done.stdout.splitlines() or [""])[0]))
        for board in ("memwarden-fleet.json", "memwarden-runs.json"):
            times = []
            for query in queries(board):
                end = time.time()
                parameters = {"query": query, "start": end - 60 * args.minutes, "end": end, "step": INTERVAL}
                fetch(base + "/api/v1/query_range?" + urllib.parse.urlencode(parameters))
                times.append((time.time() - end, query))
            print("%s: %d queries, %.2f s together, the slowest %.2f s: %s" % (
                board, len(times), sum(each for each, _ in times), *max(times)))
    finally:
        prometheus.terminate()
        prometheus.wait()
        server.shutdown()
        server.server_close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memwarden", required=True)
    parser.add_argument("--library", required=True, help="libfake_nvml.so")
    parser.add_argument("--prometheus", default=shutil.which("prometheus"))
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--minutes", type=float, default=4)
    args = parser.parse_args()
    whole = page_of(args)
    names = read_names()
    lines = [line for line in whole if re.match(r"\w+", line)[0] in names]
    print("page of a node: %d series; served: %d" % (len(whole), len(lines)), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for nodes in args.nodes:
            measure(args, lines, nodes, pathlib.Path(folder))


if __name__ == "__main__":
    main()
