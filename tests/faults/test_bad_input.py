#!/usr/bin/python3
"""Every kind of bad input gives one clear line on standard error that names the file, exit 2, and nothing else."""
import os
import signal
import subprocess

from common import ENV, KEEL, SOURCE, TRAIN, Case, main

LINE = "x" * 40 + "\n"


class BadInput(Case):
    def refused(self, args, *names, stdout=""):
        p = self.run_program(args, expect=2)
        lines = p.stderr.splitlines()
        self.assertEqual(len(lines), 1, f"{args}: {p.stderr!r}")
        if stdout is not None:
            self.assertEqual(p.stdout, stdout, f"{args}")
        for name in names:
            self.assertIn(name, lines[0])

    def readers(self):
        return ([KEEL, "report"], [KEEL, "report", "--format", "json"], [KEEL, "check"], [KEEL, "dump"])

    def test_missing_file(self):
        for command in self.readers():
            self.refused(command + [self.path("nothing")], "nothing")
        self.refused([KEEL, "doctor", self.path("nothing")], "nothing")
        self.refused([TRAIN, self.path("nothing.yaml")], "nothing.yaml")
        self.refused([TRAIN, self.config(), "--monitor", self.path("nothing.yaml")], "nothing.yaml")

    def test_what_is_refused_leaves_no_folder(self):
        for ranks, more in ((2, ["parallel_config.model_parallel=3"]), (1, ["runner_config.batch_size=100000"])):
            args = self.job(ranks, self.config(), "--set", f"monitor.output={self.path('runs', 'a', 'b')}")
            for setting in more:
                args += ["--set", setting]
            p = self.run_program(args, expect=2)
            self.assertEqual(p.stderr.count("keel-train: "), 1, p.stderr)
            self.assertFalse(os.path.exists(self.path("runs")))
            self.assertFalse(os.path.exists(self.path("out")))

    def test_directory_without_a_store(self):
        os.mkdir(self.path("empty"))
        for command in self.readers():
            self.refused(command + [self.path("empty")], "empty")
        self.refused([TRAIN, self.path("empty")], "empty")

    def test_truncated_hdf5(self):
        self.run_program([TRAIN, self.config(steps=5), "--monitor", self.preset("monitor.yaml"), "--set", f"monitor.output={self.path('run')}"])
        with open(self.path("run", "keel-0000.h5"), "rb") as f:
            whole = f.read()
        for share in (0.05, 0.5, 0.9):
            with open(self.path("cut.h5"), "wb") as f:
                f.write(whole[: int(len(whole) * share)])
            for command in self.readers():
                self.refused(command + [self.path("cut.h5")], "cut.h5")

    def test_text_named_h5(self):
        self.write("text.h5", LINE * 100)
        for command in self.readers():
            self.refused(command + [self.path("text.h5")], "text.h5")
        self.refused([KEEL, "doctor", self.path("text.h5")], "text.h5")

    def test_empty_file(self):
        self.write("empty.h5", "")
        self.write("empty.yaml", "")
        for command in self.readers():
            self.refused(command + [self.path("empty.h5")], "empty.h5")
        self.refused([TRAIN, self.path("empty.yaml")], "empty.yaml")

    def test_jobs(self):
        """Under mpirun as well: one line, whatever mpirun adds, and with a place."""
        config = self.config(name="job.yaml", extra="parallel_config:\n  model_parallel: 3\n")
        halves = self.config(name="halves.yaml", extra="parallel_config:\n  model_parallel: 2\n  use_seq_parallel: true\n")
        for args, *names in (
            (["--nix"], "--nix: unknown option"),
            ([], "no CONFIG.yaml"),
            ([config], "job.yaml:", "parallel_config.model_parallel: model_parallel 3 x pipeline_stage 1 = 3 does not divide"),
            ([halves, "--set", "runner_config.batch_size=1", "--set", "model_config.seq_length=33"], "halves.yaml:",
             "parallel_config.use_seq_parallel: model_parallel 2 does not divide the 33 rows"),
            ([config, "--set", "parallel_config.model_parallel=1", "--set", "parallel_config.expert_parallel=3", "--set",
              "moe_config={expert_num: 6}"], "--set:2", "parallel_config.expert_parallel: 3 does not divide data_parallel 2"),
            ([config, "--set", "parallel_config.model_parallel=1", "--set", "optimizer.offload={folder: /dev/shm, memory_limit: 100000}"],
             "optimizer.offload.folder: /dev/shm lies in memory"),
        ):
            p = self.run_program(self.job(2, *args), expect=2)
            lines = [line for line in p.stderr.splitlines() if "keel-train: " in line]
            self.assertEqual(len(lines), 1, p.stderr)
            for name in names:
                self.assertIn(name, lines[0])

    def test_settings_without_effect(self):
        cpu = min(os.sched_getaffinity(0))
        for setting, told in (("parallel_config.enable_parallel_optimizer=true", "parallel_config.enable_parallel_optimizer has no effect"),
                              (f"context.affinity_config={{device_7: {{affinity_cpu_list: ['{cpu}']}}}}",
                               "context.affinity_config.device_7 has no effect")):
            p = self.run_program([TRAIN, self.config(), "--set", setting, "--print-structure"])
            self.assertEqual(p.stdout.count(told), 1, p.stdout[-1000:])

    def test_yaml(self):
        cases = {
            "tab": ("runner_config:\n\tsteps: 3\n", ":2:"),
            "unknown": ("runner_config:\n  stepz: 3\n", ":2:3", "runner_config.stepz", "steps"),
            "type": ("runner_config:\n  steps: many\n", ":2:10", "runner_config.steps"),
            "negative": ("model_config:\n  hidden_size: -8\n", ":2:16", "model_config.hidden_size"),
            "list": ("- 1\n", ":1:"),
        }
        for name, (content, *wanted) in cases.items():
            file = self.write(name + ".yaml", content)
            self.refused([TRAIN, file], name + ".yaml", *wanted)
        monitors = {
            "mtab": ("monitor:\n\toutput: x\n", ":2:"),
            "munknown": ("monitor:\n  ouput: x\n", ":2:3", "monitor.ouput", "output"),
            "mtype": ("monitor:\n  queue_depth: deep\n", ":2:16", "monitor.queue_depth"),
            "mnegative": ("monitor:\n  queue_depth: -1\n", ":2:16", "monitor.queue_depth"),
            "mop": ("monitor:\n  select:\n    - {ops: [norn]}\n", ":3:", "norn", "norm"),
            "mquantity": ("monitor:\n  select:\n    - {quantities: [wieght]}\n", ":3:", "wieght", "weight"),
            "mregex": ("monitor:\n  select:\n    - {sites: '('}\n", ":3:", "sites"),
            "mrule": ("monitor:\n  rules:\n    loss_spik: {z: 3}\n", ":3:", "loss_spik", "loss_spike"),
            "mkey": ("monitor:\n  rules:\n    loss_spike: {zz: 3}\n", ":3:", "zz"),
            "mrange": ("monitor:\n  rules:\n    loss_spike: {z: -3}\n", ":3:", "loss_spike"),
        }
        config = self.config()
        for name, (content, *wanted) in monitors.items():
            file = self.write(name + ".yaml", content)
            for more in ([], ["--print-structure"]):
                self.refused([TRAIN, config, "--monitor", file, "--set", f"monitor.output={self.path('run')}", *more], name + ".yaml", *wanted)

    def test_what_does_not_fit(self):
        config = self.config()
        self.refused([TRAIN, config, "--set", "model_config.num_heads=5"], "num_heads")
        self.refused([TRAIN, config, "--set", "parallel_config.data_parallel=3"], "data_parallel")
        self.refused([TRAIN, config, "--set", "train_dataset.text=[" + self.path("none.txt") + "]"], "none.txt")
        # Said once the shards are made, which is noted on standard output.
        self.refused([TRAIN, config, "--set", "model_config.vocab_size=100"], "100", stdout=None)
        self.refused([TRAIN, config, "--resume"], stdout=None)

    def test_usage(self):
        for command in ("report", "check", "dump", "import"):
            self.refused([KEEL, command])
            self.refused([KEEL, command, "--no-such-option", "x"])
        self.refused([KEEL, "nonsense"], "nonsense")
        self.refused([TRAIN])
        self.refused([TRAIN, "a.yaml", "b.yaml"])

    def test_output_that_cannot_be_written(self):
        log = self.write("log.csv", "step,loss\n" + "".join(f"{i},3\n" for i in range(200)))
        config = self.config(steps=12, save=5)
        self.run_program([TRAIN, config])
        commands = (["check", log], ["check", "--list-rules"], ["report", log], ["report", log, "--format", "json"], ["dump", "--help"],
                    ["diff", log, log], ["diff", log, log, "--json"], ["doctor"], ["lab", "--help"], ["import", "--help"], ["import", "--list-formats"], ["--help"], ["--version"])
        trainer = [[TRAIN, "--help"], [TRAIN, "--version"], [TRAIN, config, "--print-structure"], [TRAIN, config, "--replay-batch", "11"]]
        for command in [[KEEL, *command] for command in commands] + trainer:
            with open("/dev/full", "w", encoding="ascii") as full:
                p = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=ENV, timeout=60, cwd=self.dir)
            self.assertEqual(p.returncode, 2, f"{command}: {p.stderr!r}")
            self.assertEqual(len(p.stderr.splitlines()), 1, f"{command}: {p.stderr!r}")
            self.assertIn("cannot be written: No space left on device", p.stderr)

    def test_source_code_is_no_log(self):
        for command in self.readers():
            self.refused(command + [os.path.join(SOURCE, "tools", "keel.c")], "keel.c")

    def test_a_run_is_not_written_over(self):
        args = [TRAIN, self.config(steps=3), "--monitor", self.preset("monitor.yaml"), "--set", f"monitor.output={self.path('run')}"]
        self.run_program(args)
        self.refused(args, "run")

    def test_paths_in_settings_are_named_with_their_key(self):
        a_file = self.write("file", "text")
        monitor = ["--monitor", self.preset("monitor.yaml")]
        for key, more in (("runner_config.output_dir", []), ("train_dataset.shards", []), ("monitor.output", monitor),
                          ("model_config.checkpoint_name_or_path", [])):
            self.refused([TRAIN, self.config(), *more, "--set", f"{key}={a_file}"], key, a_file, stdout=None)

    def test_paths_of_any_characters(self):
        run = self.path("a b", "ünï 'q' \"d\" $x")
        quoted = run.replace("'", "''")
        self.run_program([TRAIN, self.config(steps=3), "--monitor", self.preset("monitor.yaml"), "--set", f"monitor.output='{quoted}'"])
        self.assertIn("3 records", self.run_program([KEEL, "check", run]).stdout)
        self.refused([KEEL, "report", os.path.dirname(run)], "holds 1 of them; give that: " + run)

    def test_one_training_in_a_folder_at_a_time(self):
        config = self.config(steps=100000)
        watched = ["--monitor", self.preset("monitor.yaml"), "--set", f"monitor.output={self.path('out')}"]  # the same as output_dir
        first = self.start([TRAIN, config, *watched], self.path("first.log"))
        self.wait_for(lambda: self.steps_made() > 2)
        self.refused([TRAIN, config], "out: another training writes there: name another runner_config.output_dir", stdout=None)
        self.refused([TRAIN, config, "--set", f"runner_config.output_dir={self.path('other')}", *watched], "out: holds a run already", stdout=None)
        self.refused([KEEL, "import", self.path("out", "train.csv"), "-o", self.path("out")], "a run is there already")
        self.assertIn("\n2,", self.run_program([KEEL, "dump", self.path("out"), "--series", "loss"]).stdout)
        first.send_signal(signal.SIGINT)
        self.assertEqual(first.wait(30), 128 + signal.SIGINT)


main()
