#!/usr/bin/python3
"""A rank that is killed, crashes, exits, is stopped or computes for ever: the job ends within a bounded time, the report names the
rank, the store is readable. In every kind of layout: LAYOUTS lists them."""
import json
import os
import signal
import time

import h5py

from common import ENV, KEEL, SLOWER, Case, main

LAYOUTS = {  # name: (ranks, settings)
    "dp2": (2, ()),
    "dp4": (4, ()),
    "zero2": (2, ("parallel_config.enable_parallel_optimizer=true",)),
    "tp2": (2, ("parallel_config.model_parallel=2",)),
    "pp2": (2, ("parallel_config={pipeline_stage: 2, micro_batch_num: 2}",)),
    "ep2": (2, ("moe_config={expert_num: 4, num_experts_chosen: 2}", "parallel_config.expert_parallel=2")),
}
HANG, END = 1.5, 3  # seconds: until a hang is told, and until it ends the job
BOUND = 40  # seconds within which every job must be over, on a machine that others use too


class DeadRanks(Case):
    def begin(self, layout, hook):
        """A job in the middle of its run: the process, its ranks."""
        ranks, settings = LAYOUTS[layout]
        self.write("hook.sh", '#!/bin/sh\necho "$KEEL_RULE $KEEL_RANK" >> "$1"\n')
        os.chmod(self.path("hook.sh"), 0o755)
        sets = [f"monitor.output={self.path('run')}", f"monitor.rules.hang.min_seconds={HANG}", f"monitor.hang_timeout_seconds={END}",
                f"monitor.alerts.exec={{command: [{self.path('hook.sh')}, {hook}]}}"]
        args = self.job(ranks, self.config(steps=1000000), "--monitor", self.preset("monitor.yaml"))
        for assignment in [*sets, *settings]:
            args += ["--set", assignment]
        env = dict(ENV, LD_PRELOAD=os.environ["KEEL_PRELOAD_misbehave"])
        p = self.start([*args, *SLOWER], self.path("log"), env)
        self.wait_for(lambda: self.steps_made() > 10, 60)
        return p, self.ranks_of(p)

    def check(self, kind, layout, victim, signal_number, rule, how):
        hook = self.path("alerts")
        p, ranks = self.begin(layout, hook)
        self.assertEqual(len(ranks), LAYOUTS[layout][0])
        before, began = self.steps_made(), time.time()
        os.kill(ranks[victim], signal_number)
        try:
            p.wait(BOUND)
        except Exception:
            self.fail(f"the job has not ended; its log: {self.log()}")
        took = time.time() - began
        print(f"{kind} of rank {victim} in {layout}: the job ended after {took:.1f} s")
        self.assertNotEqual(p.returncode, 0)

        deadline = time.time() + 5  # hooks outlive the job
        while not os.path.exists(hook):
            self.assertLess(time.time(), deadline, f"no alert; the log: {self.log()}")
            time.sleep(0.05)
        with open(hook) as f:
            self.assertEqual(f.read().split(), [rule, str(victim)], self.log())
        report = self.report(self.path("run"))
        self.assertGreater(report["records"], before - 10)
        found = [k for k in report["incidents"] if k["rule"] in ("dead_rank", "hang")]
        self.assertEqual([(k["rule"], k["rank"], k["severity"]) for k in found], [(rule, victim, "critical")], self.log())
        self.assertIn(how, found[0]["message"])
        self.assertGreater(found[0]["first_step"], before - 10)
        self.assertIn(f"rank {victim}", self.run_program([KEEL, "report", self.path("run")]).stdout)
        self.run_program([KEEL, "check", self.path("run")], expect=1)
        with h5py.File(self.path("run", "keel-0000.h5"), "r", swmr=True) as f:
            self.assertEqual(f["steps"].shape[0], report["records"])
            stored = [(k["rule"].decode(), k["rank"]) for k in f["incidents"][:] if k["rule"] in (b"dead_rank", b"hang")]
        if victim > 0:  # else the writer is the victim
            self.assertIn((rule, victim), stored)
        host, = os.listdir(self.path("run", "hosts"))
        with open(self.path("run", "hosts", host)) as f:
            self.assertEqual(json.loads(f.readline())["rank"], victim)

    def log(self):
        with open(self.path("log")) as f:
            return f.read()[-4000:]


def add(kind, layout, victim, *expected):
    def test(self):
        self.check(kind, layout, victim, *expected)

    setattr(DeadRanks, f"test_{kind}_of_rank_{victim}_in_{layout}", test)


KINDS = {
    "kill": (signal.SIGKILL, "dead_rank", "killed or has crashed"),
    "crash": (signal.SIGSEGV, "dead_rank", "killed or has crashed"),
    "exit": (signal.SIGUSR2, "dead_rank", "called exit with status 7"),
    "stop": (signal.SIGSTOP, "hang", "stopped by a signal"),
    "spin": (signal.SIGUSR1, "hang", "in no collective"),
}
LONG = os.environ.get("KEEL_LONG") == "1"  # every kind in every layout
SHORT = {"dp2": ("kill", "exit", "stop", "spin"), "dp4": ("kill",)}  # of the last rank; elsewhere it is stopped
for layout, (ranks, _) in LAYOUTS.items():
    for kind, expected in KINDS.items():
        if LONG or (layout == "dp2" and kind in ("kill", "stop")):
            add(kind, layout, 0, *expected)
        if LONG or kind in SHORT.get(layout, ("stop",)):
            add(kind, layout, ranks - 1, *expected)

main()
