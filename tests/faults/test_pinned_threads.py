#!/usr/bin/python3
"""context.affinity_config: every thread of a rank runs where it is told, it is said in a line, and what cannot be is refused."""
import os
import unittest

from common import ENV, SLOWER, Case, main

CPUS = sorted(os.sched_getaffinity(0))


class PinnedThreads(Case):
    def pinned(self, modules, cpus=None):
        cpus = cpus or [str(CPUS[0]), str(CPUS[1])]
        return ["--set", f"context.affinity_config={{device_0: {{affinity_cpu_list: {cpus}, module_to_cpu_dict: {modules}}}}}"]

    @unittest.skipIf(len(CPUS) < 2, "one processor")
    def test_where_threads_run(self):
        args = self.job(2, self.config(steps=1000000), "--monitor", self.preset("monitor.yaml"), "--set",
                        f"monitor.output={self.path('run')}", *self.pinned("{main: [1], worker: [0], writer: [0]}"), *SLOWER)
        env = dict(ENV)
        del env["OMP_NUM_THREADS"]
        p = self.start(args, self.path("log"), env)
        self.wait_for(lambda: self.steps_made() > 5, 60)
        tasks = f"/proc/{self.ranks_of(p)[0]}/task"
        seen = {}
        for task in os.listdir(tasks):
            with open(f"{tasks}/{task}/comm") as comm, open(f"{tasks}/{task}/status") as status:
                cpus = next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list"))
                seen.setdefault("main" if task == tasks.split("/")[2] else comm.read().strip(), []).append(cpus)
        self.assertEqual(seen["main"], [str(CPUS[1])])
        for writer in ("keel-recorder", "keel-merge", "keel-watch"):
            self.assertEqual(seen[writer], [str(CPUS[0])], seen)
        # OpenMP's threads bear the program's name, and so do MPI's, which are left alone.
        self.assertIn(str(CPUS[0]), seen["keel-train"])
        with open(self.path("log")) as f:
            self.assertIn(f"pinned: main {CPUS[1]}, worker {CPUS[0]}, writer {CPUS[0]}, data ", f.read())

    def test_structure_and_refusals(self):
        pins = ["--set", f"context.affinity_config={{device_0: {{affinity_cpu_list: ['{CPUS[0]}']}}}}"]
        p = self.run_program(self.job(1, self.config(), "--print-structure", *pins))
        self.assertIn(f"processors of rank 0: 1 rank on this node, pinned: main {CPUS[0]}, worker {CPUS[0]}", p.stdout)
        p = self.run_program(self.job(1, self.config(), *self.pinned("{}", ["1023"])), expect=2)
        self.assertEqual(p.stderr, "keel-train: --set:1:56: context.affinity_config.device_0.affinity_cpu_list: processor 1023: there is "
                                   f"none, or this process may not use it; it may use {self.ranges()}\n")
        self.assertIn("is no place in affinity_cpu_list", self.run_program(self.job(1, self.config(), *self.pinned("{main: [7]}", ["0"])), expect=2).stderr)

    def ranges(self):
        with open("/proc/self/status") as f:
            return next(line.split()[1] for line in f if line.startswith("Cpus_allowed_list"))


main()
