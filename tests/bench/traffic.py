#!/usr/bin/python3
"""Measures what the monitor sends over 2 to 32 ranks and writes that section of docs/performance.md: tests/bench/traffic.py [BIN]
[-o docs/performance.md], or --check: measures 8 ranks and fails where they send more than the model says.

MPI counts the messages itself (Open MPI's pml monitoring), those of its collectives included: each figure is the difference of two runs
that differ in their number of steps. Ranks beyond the cores share them, which moves times but no counts."""
import argparse
import glob
import json
import math
import os
import subprocess
import sys
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEADING = "\n## What the monitor sends\n"
SITES, STEPS = 1000, (10, 30)
ENV = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
           OMPI_MCA_hwloc_base_binding_policy="none", OMPI_MCA_mpi_yield_when_idle="1", OMPI_MCA_btl_vader_single_copy_mechanism="none")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin", nargs="?", default=os.path.join(SOURCE, "build/release/bin"))
    parser.add_argument("-o", "--output", default=os.path.join(SOURCE, "docs/performance.md"))
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.check:
        for stages in (1, 4):
            check(measure(args.bin, 8, stages, 400))
        return
    measured = [check(measure(args.bin, ranks, stages, SITES)) for stages in (1, 4) for ranks in (2, 4, 8, 16, 32) if ranks >= stages]
    with open(args.output) as f:
        rest = f.read().split(HEADING)[0]
    with open(args.output, "w") as f:
        f.write(rest + HEADING + section(measured))


def run(bin, ranks, stages, sites, steps, scratch):
    """What each rank has sent to each, {(from, to): (messages, bytes)}, and what the program says."""
    name = os.path.join(scratch, f"steps{steps}")
    p = subprocess.run(["mpirun", "-n", str(ranks), "--mca", "pml_monitoring_enable", "2", "--mca", "pml_monitoring_enable_output", "3",
                        "--mca", "pml_monitoring_filename", name, os.path.join(bin, "bench_traffic"), str(sites), str(steps), str(stages)],
                       env=ENV, capture_output=True, text=True)
    if p.returncode:
        sys.exit(f"bench_traffic on {ranks} ranks: {p.stderr}")
    sent = {}
    files = glob.glob(name + ".*.prof")
    if len(files) != ranks:
        sys.exit(f"this MPI counts no messages: {len(files)} of {ranks} ranks wrote what they sent; Open MPI's pml monitoring does")
    for file in files:
        with open(file) as f:
            for line in f:
                words = line.split("\t")
                if words[0] in ("E", "I"):  # external and internal: of the program's own calls, and within collectives
                    key = int(words[1]), int(words[2])
                    before = sent.get(key, (0, 0))
                    sent[key] = before[0] + int(words[4].split()[0]), before[1] + int(words[3].split()[0])
    return sent, json.loads(p.stdout)


def measure(bin, ranks, stages, sites):
    print(f"{ranks} ranks, {stages} stages", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        (few, _), (many, said) = (run(bin, ranks, stages, sites, steps, scratch) for steps in STEPS)
    r = dict(said, ranks=ranks, stages=stages)
    for i, unit in enumerate(("messages", "bytes")):
        each = {key: (value[i] - few.get(key, (0, 0))[i]) / (STEPS[1] - STEPS[0]) for key, value in many.items()}
        by = lambda end: [sum(v for key, v in each.items() if key[end] == rank) for rank in range(ranks)]
        sent, received = by(0), by(1)
        r[unit] = {"sent_mean": sum(sent) / ranks, "sent_most": max(sent), "received_most": max(received), "root": received[0]}
    return r


def levels(ranks):
    return math.ceil(math.log2(ranks)) if ranks > 1 else 0


def model(ranks, stages):
    """Frames that rank 0 gets, at most."""
    return levels(-(-ranks // stages)) + stages - 1


def check(r):
    small = 200 * (1 + levels(r["ranks"]))  # orders of 24 bytes, and what MPI puts around them
    frame = r["frame_bytes"]
    if r["bytes"]["sent_most"] > frame + small:
        sys.exit(f"{r['ranks']} ranks: one sends {r['bytes']['sent_most']:.0f} bytes a step, more than its frame of {frame:.0f}")
    if r["bytes"]["root"] > frame * model(r["ranks"], r["stages"]) + small:
        sys.exit(f"{r['ranks']} ranks: rank 0 gets {r['bytes']['root']:.0f} bytes a step, more than {model(r['ranks'], r['stages'])} frames")
    return r


def section(measured):
    lines = ["", "A rank sends one frame a step, whatever the number of ranks; rank 0 gets as many as the reduction has levels, and one from each further",
             f"group of ranks with sites of its own (a stage). Measured by `tests/bench/traffic.py`, {SITES:,} sites in the whole run, on every step, as MPI counts",
             "its messages, those within its collectives included; bytes in frames of the largest stage.", "",
             "| ranks | stages | frame, KiB | messages sent, mean of ranks | most | bytes sent, mean, frames | most | rank 0 gets, frames | model, at most |",
             "|---|---|---|---|---|---|---|---|---|"]
    for r in measured:
        frame = r["frame_bytes"]
        lines.append(f"| {r['ranks']} | {r['stages']} | {frame / 1024:.0f} | {r['messages']['sent_mean']:.2f} | {r['messages']['sent_most']:.0f} | "
                     f"{r['bytes']['sent_mean'] / frame:.3f} | {r['bytes']['sent_most'] / frame:.3f} | {r['bytes']['root'] / frame:.2f} | {model(r['ranks'], r['stages'])} |")
    lines += ["", "Up to 4 ranks Open MPI hands a large frame along a chain, in pieces; beyond, up a binomial tree, each frame in one message."]
    rate = sum(r["merge_seconds"] / r["frame_bytes"] for r in measured) / len(measured)
    lines += ["", "**The model.** With N ranks in G stages, F bytes of a stage's frame (96 + 16 x scalars + 240 x records):",
              "", "    a rank sends         F, and an order of 24 bytes (two where replicas are compared) to at most log2(N); rank 0 no F",
              "    rank 0 gets          (ceil(log2(N / G)) + G - 1) x F",
              "    until it is merged   that many times (F / bandwidth + F x what merging a byte takes)", "",
              f"Merging a record of 240 bytes takes {1e9 * rate * 240:.0f} ns here. With that, a network of 1 GB/s and 5,000 sites in the whole run, all due:", "",
              "| ranks | stages | a rank sends, KiB | rank 0 gets, KiB | merged after, ms |", "|---|---|---|---|---|"]
    for stages in (1, 8, 64):
        for ranks in (32, 100, 1000, 10000):
            if ranks < stages:
                continue
            frame = 96 + 240 * math.ceil(5000 / stages)
            got = model(ranks, stages) * frame
            lines.append(f"| {ranks:,} | {stages} | {frame / 1024:.0f} | {got / 1024:,.0f} | {1e3 * got * (1e-9 + rate):.1f} |")
    lines += ["", "All of it happens on the merge thread, while the next step computes; with stages it is less, since each has its share of the sites. What grows with",
              "the ranks is, at the start, 8 bytes a rank for the comparison of the site tables; on a step where replicas differ, 24 bytes a rank to rank 0; and what",
              "`ranks` of a selection asks for ([monitor.md](monitor.md)).", ""]
    return "\n".join(lines)


main()
