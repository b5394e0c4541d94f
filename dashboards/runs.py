"""The dashboard of training runs, each on all of its nodes. Needs the recording rules of memwarden.rules.yaml."""

from board import ORANGE, RED, YELLOW, Board, dashboard, level, of, variable

RUN = 'run=~"$run"'
TTE = f"run:memwarden_forecast_time_to_exhaustion_seconds:min{{{RUN}}}"
# The node and the rank open their own dashboards.
NODE = ("links", [{"title": "Node", "url": "/d/memwarden-node?var-instance=${__value.raw}&${__url_time_range}"}])
RANK = ("links", [{"title": "Training", "url": "/d/memwarden-training?var-instance=${__data.fields.instance}&var-rank=${__value.raw}&${__url_time_range}"}])


def runs():
    b = Board("runs")
    b.row("Now")
    b.stat("Runs", f"count(run:memwarden_ranks:count{{{RUN}}})", "short", noValue="none", description="Training runs with at least one known rank.")
    b.stat("Ranks", f"sum(run:memwarden_ranks:count{{{RUN}}})", "short", noValue="none", description="Ranks of all runs, on all nodes.")
    b.stat("Ranks missing", f"sum(clamp_min(run:memwarden_world_size:max{{{RUN}}} - run:memwarden_ranks:count{{{RUN}}}, 0))", "short",
           noValue="unknown", steps=[level(ORANGE, 1)], description="Ranks of the world sizes that no node sees. Nodes without memwarden count as missing.")
    b.stat("Least time left, p50", f"min({TTE})", "s", noValue="none predicted", description="Time until the first resource of a run is exhausted, at its current growth.")
    b.stat("Longest time without a step", f'max(min by (job, run) (rank:memwarden_training_step_age:of_run{{{RUN}}}))', "percentunit", noValue="not reported",
           steps=[level(YELLOW, 0.5), level(RED, 1)], description="Time since the last step of the run, as a share of 20 times its step time, at which the run is reported as stalled.")
    b.stat("Tokens per second", f"sum(run:memwarden_training_tokens_per_second:sum{{{RUN}}})", "short", noValue="not reported", description="Sum of the runs.")

    b.row("Runs", is_open=True)
    b.joined("Runs", [
        (f"run:memwarden_ranks:count{{{RUN}}}", "ranks", "short"),
        (f"run:memwarden_world_size:max{{{RUN}}}", "world size", "short"),
        (f"min by (job, run) ({TTE})", "time left, p50", "s"),
        (f"max by (job, run) (rank:memwarden_training_step_duration:against_run{{{RUN}}})", "slowest rank / median", "percentunit"),
        (f"run:memwarden_training_allocator_allocated_bytes:spread{{{RUN}}}", "fullest rank / mean", "percentunit"),
        (f"run:memwarden_training_tokens_per_second:sum{{{RUN}}}", "tokens/s", "short"),
        (f"run:memwarden_training_energy_per_token_joules:avg{{{RUN}}}", "energy per token", "joule"),
    ], description="One row for each run. A value that is not reported by the job or not predicted is empty.")
    b.table("First resource to run out", f"sort({TTE})", hide=("uuid",), unit="s", names={"Value": "time left"}, overrides=[of("instance", NODE)],
            description="The resource of each run that is exhausted first, with its node; all ranks stop when one runs out.", shown=("instance",))
    b.table("Fullest rank of each run", f"run:memwarden_training_allocator_allocated_bytes:max{{{RUN}}}", unit="bytes", names={"Value": "allocated"},
            overrides=[of("instance", NODE), of("rank", RANK)], description="Rank with the most allocated memory.", shown=("instance",))
    b.table("Slowest ranks", f"sort_desc(topk(20, rank:memwarden_training_step_duration:against_run{{{RUN}}}))", unit="percentunit", names={"Value": "of the median"},
            overrides=[of("instance", NODE), of("rank", RANK)], noValue="none", shown=("instance",),
            description="Step time of the twenty slowest ranks, as a share of that of the median rank of their run.")
    b.table("Owners", f"run:memwarden_owner:info{{{RUN}}}", hide=("Value",), description="User of each run.")

    b.row("Over time")
    b.lines("Time left, p50", [(f"min by (run) ({TTE})", "{{run}}")], "s", width=12, log=True, description="Time until the first resource of the run is exhausted; logarithmic scale.")
    b.lines("Ranks", [(f"run:memwarden_ranks:count{{{RUN}}}", "{{run}}")], "short", width=12, min=0, decimals=0, description="Known ranks of each run.")
    b.lines("Tokens per second", [(f"run:memwarden_training_tokens_per_second:sum{{{RUN}}}", "{{run}}")], "short", width=12, min=0, description="Throughput of each run.")
    b.lines("Step time of the median and of the slowest rank", [
        (f"quantile by (run) (0.5, rank:memwarden_training_step_duration_seconds:of_run{{{RUN}}})", "{{run}}, median"),
        (f"max by (run) (rank:memwarden_training_step_duration_seconds:of_run{{{RUN}}})", "{{run}}, slowest"),
    ], "s", width=12, min=0, description="Median over ten minutes of the step time of each rank.")
    b.lines("Allocated memory of the fullest rank and of the mean", [
        (f"max by (run) (rank:memwarden_training_allocator_allocated_bytes:of_run{{{RUN}}})", "{{run}}, fullest"),
        (f"avg by (run) (rank:memwarden_training_allocator_allocated_bytes:of_run{{{RUN}}})", "{{run}}, mean"),
    ], "bytes", width=12, min=0, description="Memory that the allocators of the ranks have allocated.")
    b.lines("Time since the last step", [(f"min by (run) (rank:memwarden_training_step_age:of_run{{{RUN}}})", "{{run}}")], "percentunit", width=12, min=0,
            description="As a share of 20 times the step time of the run, at which it is reported as stalled.")
    b.lines("Ends other than success", [('sum by (user, cause) (increase(memwarden_ends_total{cause!="finished"}[1h]))', "{{user}}: {{cause}}")], "short", width=12, min=0, decimals=0,
            description="Workloads, ranks and large processes that ended within an hour, by user and cause; memwarden why on the node has the evidence.")
    return dashboard("runs", "Training runs on all of their nodes: time left, ranks, balance, throughput.", b, [
        variable("run", "label_values(run:memwarden_ranks:count, run)", "Run"),
    ], tags=("gpu", "training"))
