#!/usr/bin/python3
"""Measures every figure of docs/performance.md and writes it: tests/bench/performance.py [BIN] [-o docs/performance.md]

Each figure is a ratio within one run, or names the run it is from. Takes about a quarter of an hour on two idle cores."""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ENV = dict(os.environ, OMP_NUM_THREADS="2")
GPT2 = """\
runner_config: {{steps: 3, batch_size: 4, output_dir: {dir}/out}}
model_config: {{model_type: gpt2, vocab_size: 50304, seq_length: 64, hidden_size: 768, num_layers: 12, num_heads: 12}}
lr_schedule: {{type: constant, learning_rate: 1.0e-4}}
train_dataset: {{text: [{dir}/text], shards: {dir}/shards}}
"""
# A model whose steps take so little that what a monitor with nothing enabled adds to them is seen.
SMALL = GPT2.replace("vocab_size: 50304", "vocab_size: 1024").replace("hidden_size: 768", "hidden_size: 128").replace(
    "num_layers: 12, num_heads: 12", "num_layers: 2, num_heads: 4").replace("batch_size: 4", "batch_size: 1")
TRAFFIC = "\n## What the monitor sends\n"  # tests/bench/traffic.py writes that section
# Thousand million values that each part of a step of it shows where everything is on.
PARTS = {"forward and backward": 0.11, "norm of the gradient": 0.12, "AdamW": 0.62}
VALUES = 1e9 * sum(PARTS.values())
NOTHING = "monitor: {select: [{enabled: false}]}\n"
MONITORS = {
    "every quantity, every op, every step": None,
    "`configs/monitor.yaml` as shipped": "configs/monitor.yaml",
    "nothing enabled": NOTHING,
    "non-finite flags alone": "monitor: {select: [{ops: []}]}\n",
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin", nargs="?", default=os.path.join(SOURCE, "build/release/bin"))
    parser.add_argument("-o", "--output", default=os.path.join(SOURCE, "docs/performance.md"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows, bounds = [], {}

        def collect():
            bounds.update((yield from measure(args.bin, scratch)))

        for row in collect():
            print(" | ".join(row), file=sys.stderr, flush=True)
            rows.append(row)
    with open(args.output) as f:
        traffic = f.read().partition(TRAFFIC)
    with open(args.output, "w") as f:
        f.write(document(rows, bounds) + traffic[1] + traffic[2])


def bench(bin, *words):
    print("keel-bench", *words, file=sys.stderr, flush=True)
    p = subprocess.run([os.path.join(bin, "keel-bench"), *words, "--json"], env=ENV, capture_output=True, text=True)
    if p.returncode:
        sys.exit(f"keel-bench {' '.join(words)}: {p.stderr}")
    return json.loads(p.stdout)


def measure(bin, scratch):
    """Rows: what, to reach, measured, command."""
    stats = bench(bin, "stats")["results"]
    find = lambda dtype, fields, size: next(r for r in stats if (r["dtype"], r["fields"], r["bytes"]) == (dtype, fields, size))
    big, small = 512 << 20, 1 << 20
    command = "keel-bench stats"
    for what, target, r in (("statistics, f32, base fields, 512 MiB, one core, against a pure read", 0.95, find("float32", "base", big)),
                            ("the same, all fields", 0.85, find("float32", "all", big)),
                            ("the same, base fields, 1 MiB", 0.30, find("float32", "base", small))):
        yield what, f">= {target}", f"{r['ratio']:.2f} ({r['stats_gbps']:.1f} of {r['read_gbps']:.1f} GB/s)", command
    r = find("float32", "all", small)
    yield "the same, all fields, 1 MiB", "", f"{r['ratio']:.2f} ({r['stats_gbps']:.1f} of {r['read_gbps']:.1f} GB/s)", command
    vector = {"base": 64 / find("float32", "base", small)["stats_gbps"], "all": 64 / r["stats_gbps"]}  # ns
    for dtype in ("float16", "bfloat16"):
        for fields in ("base", "all"):
            ratio = (find(dtype, fields, small)["stats_gbps"] / 2) / (find("float32", fields, small)["stats_gbps"] / 4)
            yield f"{dtype} in cache, {fields} fields, elements a second against f32", ">= 0.8", f"{ratio:.2f}", command
    off, parts = [], None
    for what, monitor in MONITORS.items():
        words = ["overhead", "--blocks", "9"]
        if monitor:
            file = os.path.join(SOURCE, monitor)
            if monitor.startswith("monitor:"):
                file = os.path.join(scratch, "monitor.yaml")
                with open(file, "w") as f:
                    f.write(monitor)
            words += ["--monitor", file]
        r = bench(bin, *words)
        target = {"every": "2", "`conf": "1", "nothi": "0.1", "non-f": "0.5"}[what[:5]]
        yield (f"overhead of a step, GPT-2 124M, batch 4 x 64, 2 threads: {what}", f"<= {target} %",
               f"{100 * r['overhead']:.2f} % ({r['seconds_on']:.3f} s against {r['seconds_off']:.3f} s; CPU {r['cpu_seconds_on']:.3f} s against {r['cpu_seconds_off']:.3f} s)",
               "keel-bench overhead --blocks 9" + (" --monitor ..." if monitor else ""))
        off.append(r["seconds_off"])
        parts = parts or r["parts"]  # of everything on
    r = bench(bin, "train")
    yield ("forward and backward, the same model, batch 4 x 256, against the sgemm peak of 2 threads", ">= 0.75",
           f"{r['utilisation']:.2f} ({r['gflops']:.0f} of {r['sgemm_gflops']:.0f} GFLOP/s, {r['tokens_per_second']:.0f} tokens/s)", "keel-bench train")
    yield ("AdamW update with all observations, against the copy bandwidth of 2 threads", ">= 0.80",
           f"{r['optimizer_ratio']:.2f} ({r['optimizer_gbps']:.1f} of {r['copy_gbps']:.1f} GB/s)", "keel-bench train")
    yield from torch_rows(4 * 64 / statistics.median(off))
    r = bench(bin, "detect")
    yield "detectors, 5,000 series, default rules", "<= 200 ns", f"{r['ns_per_series_step']:.0f} ns per series and step", "keel-bench detect"
    r = bench(bin, "store")
    yield ("store, 5,000 sites, default ops, per value", "<= 9 bytes live, 4 repacked, 3 ms a step",
           f"{r['bytes_per_value_live']:.2f} bytes live, {r['bytes_per_value_repacked']:.2f} repacked, {r['writer_ms_per_step']:.2f} ms of the writer thread a step", "keel-bench store")
    yield memory_row(bin, scratch)
    table = "\n".join(f"| {name} | {1e3 * part['seconds_off']:.0f} | {1e3 * part['added']:.1f} | {values:.2f} |"
                      for (name, values), part in zip(PARTS.items(), (parts[k] for k in ("forward_backward", "grad_norm", "update"))))
    nothing = nothing_ms(bin, scratch)
    return {"nothing": nothing, "nothing_share": 0.1 * nothing / off[0], "budget": 0.02 * off[0] * 2e9 / (VALUES / 16), "parts": table, **vector}


def nothing_ms(bin, scratch):
    """What a monitor with nothing enabled adds to a step, in ms: the median of five runs."""
    model, monitor = os.path.join(scratch, "small.yaml"), os.path.join(scratch, "nothing.yaml")
    for path, text in ((model, SMALL.format(dir=scratch)), (monitor, NOTHING)):
        with open(path, "w") as f:
            f.write(text)
    words = ["overhead", "--block", "200", "--blocks", "9", "--model", model, "--monitor", monitor]
    return statistics.median(1e3 * r["overhead"] * r["seconds_off"] for r in (bench(bin, *words) for _ in range(5)))


def torch_rows(ours):
    script = os.path.join(SOURCE, "tests/bench/peer_torch.py")
    for hooks in ([], ["--hooks"]):
        p = subprocess.run(["/usr/bin/python3", script, *hooks], env=ENV, capture_output=True, text=True)
        if p.returncode:
            yield "against python3-torch", ">= 3 times its tokens a second", "not measured: python3-torch is not installed", "tests/bench/peer_torch.py"
            return
        r = json.loads(p.stdout)
        name = f"against python3-torch {r['torch']}{' with hooks' if hooks else ''}, same model, batch 4 x 64, 2 threads"
        yield (name, ">= 3 times its tokens a second" if not hooks else "",
               f"{ours / r['tokens_per_second']:.1f} times ({r['seconds_per_step']:.2f} s a step for it)", "tests/bench/peer_torch.py " + " ".join(hooks))


def peak(command):
    """Greatest resident bytes of a command."""
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.execve(command[0], command, ENV)
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed")
    return usage.ru_maxrss * 1024


def memory_row(bin, scratch):
    with open(os.path.join(scratch, "text"), "w") as f:
        f.write("the quick brown fox jumps over the lazy dog. " * 5000)
    config = os.path.join(scratch, "gpt2.yaml")
    with open(config, "w") as f:
        f.write(GPT2.format(dir=scratch))
    train = [os.path.join(bin, "keel-train"), config]
    off = [peak(train) for _ in range(3)]
    on = []
    for i in range(3):
        on.append(peak(train + ["--monitor", os.path.join(SOURCE, "configs/monitor-full.yaml"), "--set", f"monitor.output={scratch}/run{i}"]))
    added = (sorted(on)[1] - sorted(off)[1]) / 2**20
    return "peak memory added by the monitor, GPT-2 124M, everything on", "<= 32 MiB", f"{added:.1f} MiB", "tests/bench/performance.py"


def cpu_name():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def document(rows, bounds):
    lines = ["# Performance", "", f"Measured by `tests/bench/performance.py` on {cpu_name()}, {os.cpu_count()} cores, {platform.system()}.",
             "Each figure is a ratio within one run; medians of several turns. On a machine that others share, expect the ratios to hold and the rates to move.",
             "", "| what | to reach | measured | command |", "|---|---|---|---|"]
    lines += [f"| {what} | {target} | {measured} | `{command}` |" for what, target, measured, command in rows]
    return "\n".join(lines) + "\n" + NOTES.format(**bounds)


NOTES = """
## What bounds what is not reached

**Overhead with everything on.** A step of this model shows its 124 million parameters six times (gradient, both states, direction,
update, weight) and some 105 million values of activations and their gradients, all fields of each. Where the time goes, by the same run of
`keel-bench overhead`, medians:

| part of a step | without, ms | the monitor adds, ms | thousand million values |
|---|---|---|---|
{parts}

Two percent of the step leave {budget:.2f} ns of a core for each vector of 16 values. In the first cache, where nothing waits for memory, one takes
{base:.2f} ns for the base fields and {all:.2f} for all (the rows of 1 MiB; that of all fields takes checksums, which a single copy is spared): five operations
(three extremes, two sums) of which a core does two of 512 bits a cycle, then one for the magnitudes and one for each limit below which some of a block's values lie.
AdamW waits for memory and hides part of it; the rest is arithmetic in a step that keeps both cores busy with arithmetic. `configs/monitor.yaml`, which
is meant to be left on, takes flags of everything at every step, and the usual statistics every few.

**16-bit values in cache.** Extremes, counts below a limit and what half cannot hold of bfloat16 are told from the stored bits, 32 values a vector; sums are
added as floats. To make those of halves takes two operations a vector where float32 takes none: base fields of float16 are bound by that.

**Overheads below one percent** are less than what two blocks of one run differ by on a machine that others share. What a monitor with nothing
enabled costs, a frame of scalars, is seen where steps are short: it adds {nothing:.2f} ms to a step of a model of two layers (median of five runs
of `keel-bench overhead --block 200 --blocks 9` by this script), which is {nothing_share:.2f} percent of the step of the table.
"""

main()
