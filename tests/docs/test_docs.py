#!/usr/bin/python3
"""Runs every command in the documents: ```sh blocks by bash, ```python by Python, ```c compiled and run against libkeel, ```yaml read as
what it is. Blocks of a document run in order, in a scratch copy of the tree's layout, so that a reader's session is what is tested."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ["KEEL_BIN"]
BUILD = os.path.dirname(BIN)
# Whole-tree commands, each run by the test suite itself or by a test of its own.
ELSEWHERE = re.compile(r"^(tools/demo|tools/test|tools/setup|git clone|cd evenkeel|cmake --|ctest |apt-get|clang-format|tests/bench/|keel-train CONFIG)")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def documents():
    names = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
    names += sorted(os.path.join("docs", n) for n in os.listdir(os.path.join(SOURCE, "docs")) if n.endswith(".md"))
    return names


class Documents(unittest.TestCase):
    def scratch(self):
        path = tempfile.mkdtemp(prefix="keel-docs-")
        self.addCleanup(shutil.rmtree, path, ignore_errors=True)
        for name in ("configs", "tools", "docs", "tests"):
            os.symlink(os.path.join(SOURCE, name), os.path.join(path, name))
        os.makedirs(os.path.join(path, "build/release"))
        os.symlink(BIN, os.path.join(path, "build/release/bin"))
        return path

    def run_block(self, kind, text, cwd):
        env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1",
                   PATH=BIN + ":" + os.environ["PATH"])
        run = lambda *args: subprocess.run(args, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
        if kind == "sh":
            lines = [l for l in text.splitlines() if not ELSEWHERE.match(l)]
            return run("bash", "-euo", "pipefail", "-c", "\n".join(lines))
        if kind == "python":
            return run("/usr/bin/python3", "-c", text)
        if kind == "c":
            with open(os.path.join(cwd, "example.c"), "w") as f:
                f.write(text)
            built = run("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", SOURCE, "example.c", "-o", "example", "-L", os.path.join(BUILD, "lib"),
                        "-lkeel", "-Wl,-rpath," + os.path.join(BUILD, "lib"))
            return built if built.returncode else run("./example")
        if kind == "yaml":
            with open(os.path.join(cwd, "example.yaml"), "w") as f:
                f.write(text)
            if text.lstrip().startswith("monitor:"):
                return run("keel-train", "configs/demo.yaml", "--monitor", "example.yaml", "--set", "runner_config.steps=3",
                           "--set", "lr_schedule.warmup_steps=1", "--set", f"monitor.output={tempfile.mkdtemp(dir=cwd)}")
            return run("keel-train", "example.yaml", "--print-structure")
        return None

    def test_every_block_runs(self):
        count = 0
        for name in documents():
            with open(os.path.join(SOURCE, name)) as f:
                blocks = BLOCK.findall(f.read())
            cwd = self.scratch()
            for index, (kind, text) in enumerate(blocks):
                with self.subTest(document=name, block=index, kind=kind):
                    p = self.run_block(kind, text, cwd)
                    if p is None:
                        continue
                    count += 1
                    self.assertEqual(p.returncode, 0, f"{text}\nstdout: {p.stdout[-1500:]}\nstderr: {p.stderr[-1500:]}")
        self.assertGreater(count, 5, "the documents hold hardly any command")

    def test_the_list_of_rules_is_the_programs(self):
        listed = subprocess.run([os.path.join(BIN, "keel"), "check", "--list-rules"], capture_output=True, text=True, check=True).stdout
        with open(os.path.join(SOURCE, "docs/rules.md")) as f:
            shown = f.read().split("<!-- keel check --list-rules -->\n```text\n")[1].split("```")[0]
        self.assertEqual(shown, listed)

    def test_every_key_of_the_trainer_is_described(self):
        with open(os.path.join(SOURCE, "configs/train_config.c")) as f:
            keys = re.findall(r"KEEL_YAML_ROW_\w+\((?:keel_\w+, )?(\w+)", f.read())
        described = set()
        for name in documents():
            with open(os.path.join(SOURCE, name)) as f:
                described.update(re.findall(r"\w+", f.read()))
        self.assertGreater(len(keys), 60)
        self.assertEqual([key for key in keys if key not in described], [])

    def test_files_that_documents_name_exist(self):
        for name in documents():
            with open(os.path.join(SOURCE, name)) as f:
                text = f.read()
            for target in re.findall(r"\]\(([^)#:]+)\)", text):
                with self.subTest(document=name, target=target):
                    self.assertTrue(os.path.exists(os.path.join(SOURCE, os.path.dirname(name), target)))


unittest.main(verbosity=2)
