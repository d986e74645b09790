#!/usr/bin/python3
"""The laboratory: what is disturbed is found by name, what cannot be run is an error, and it cleans up behind it."""
import json
import os
import re
import signal
import subprocess
import time

from common import ENV, KEEL, SOURCE, Case, main

CASES = os.path.join(SOURCE, "configs", "lab")


class Lab(Case):
    def lab(self, *args, **kwargs):
        return self.run_program([KEEL, "lab", *args], timeout=300, **kwargs)

    def cases(self, **files):
        """A folder with the real base and these cases."""
        os.makedirs(self.path("cases"), exist_ok=True)
        with open(os.path.join(CASES, "base.yaml")) as f:
            self.write("cases/base.yaml", f.read())
        for name, text in files.items():
            self.write(f"cases/{name}.yaml", text)
        return self.path("cases")

    def test_faults_are_found_by_name(self):
        names = ["nan", "garbage_batch", "bit_flip", "dead_layer"]
        args = [a for name in names for a in ("--fault", name)]
        found = json.loads(self.lab("--seed", "7", "--runs", "1", *args, "--healthy", "300", "--json").stdout)
        self.assertEqual([f["name"] for f in found["faults"]], sorted(names))
        for fault in found["faults"]:
            with self.subTest(fault=fault["name"]):
                self.assertEqual((fault["runs"], fault["found"], fault["cause_first"], fault["early"]), (1, 1, 1, 0))
                self.assertIn(fault["site_right"], (1, None))
                self.assertIn(fault["rank_right"], (1, None))
                self.assertLessEqual(fault["latency_steps"], 2)
        by_name = {f["name"]: f for f in found["faults"]}
        for name in ("nan", "bit_flip"):
            self.assertEqual((by_name[name]["site_right"], by_name[name]["rank_right"]), (1, 1), name)
        self.assertGreaterEqual(found["healthy"]["steps"], 300)
        self.assertEqual(found["healthy"]["criticals"], 0)

    def test_a_seed_draws_the_same_again(self):
        def configuration(name, seed):
            self.lab("--seed", str(seed), "--runs", "1", "--fault", "nan", "--output", self.path(name))
            with open(self.path(name, "nan-1", "train.yaml")) as f:
                return f.read()
        first = configuration("a", 3)
        self.assertEqual(configuration("b", 3), first)
        self.assertNotEqual(configuration("c", 4), first)
        self.assertFalse("$" in first)

    def test_what_cannot_be_run(self):
        p = self.lab("--fault", "garbage_bach", expect=2)
        self.assertRegex(p.stderr, 'no fault "garbage_bach" in .*; the nearest is "garbage_batch"')
        p = self.lab("--fault", "healthy_gpt2", expect=2)
        self.assertIn('"healthy_gpt2" is a healthy case and no fault', p.stderr)
        for text, wanted in (
            ("about: x\nfnd: {}\n", r"odd\.yaml:2:1: fnd: unknown key; nearest known: find"),
            ("about: x\nfind: {rules: [nonfinite]}\n", r"odd\.yaml:2:7: find\.cause: missing"),
            ("about: x\ndraw: {a: [2, 1]}\nfind: {rules: [nonfinite], cause: x}\n", r"odd\.yaml:2:11: draw\.a: the greater number comes first"),
            ("about: x\nfind: {rules: [nonfinite], cause: x, onset: $onset}\n", r"odd\.yaml:2: \$onset: draw has no such name"),
            ("about: x\ntrain: {runner_config: {stepz: 3}}\nfind: {rules: [nonfinite], cause: x}\n", r"odd-1: the training failed \(exit code 2\): .*stepz.*steps"),
        ):
            with self.subTest(text=text):
                p = self.lab("--cases", self.cases(odd=text), "--runs", "1", "--fault", "odd", expect=2)
                self.assertRegex(p.stderr, wanted)
                self.assertEqual(p.stdout, "")
        self.lab("--runs", "0", expect=2)

    def test_interrupted(self):
        temporary = self.path("tmp")
        os.mkdir(temporary)
        p = subprocess.Popen([KEEL, "lab", "--runs", "3", "--fault", "nan"], env=dict(ENV, TMPDIR=temporary),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.time() + 60
        while time.time() < deadline and not any("keel-0000.h5" in names for _, _, names in os.walk(temporary)):
            time.sleep(0.05)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=60)
        self.assertEqual((p.returncode, out), (130, ""), err)
        self.assertIn("keel lab: stopped: Interrupt", err)
        self.assertEqual(os.listdir(temporary), [])
        running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        self.assertNotIn(temporary, running)

    def test_rules_do_not_know_of_faults(self):
        """The flag of a disturbed step, and the section that disturbs it, are nothing that a rule may look at."""
        for folder, _, names in os.walk(os.path.join(SOURCE, "analyzers")):
            for name in names:
                with open(os.path.join(folder, name)) as f:
                    self.assertIsNone(re.search(r'STEP_FAULT|"faults"', f.read()), name)


main()
