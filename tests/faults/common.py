"""What the whole-program tests share: where the programs are, how a job is started, a small configuration."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BIN = os.environ["KEEL_BIN"]
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KEEL = os.path.join(BIN, "keel")
TRAIN = os.path.join(BIN, "keel-train")
ENV = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1",
           OMPI_MCA_btl_vader_single_copy_mechanism="none")

TINY = """\
runner_config: {{steps: {steps}, batch_size: 2, gradient_accumulation_steps: {accumulation}, seed: 7, output_dir: {dir}/out, log_interval: 10}}
runner_wrapper: {{use_clip_grad: true, max_grad_norm: 1.0}}
model_config: {{model_type: llama, vocab_size: 256, seq_length: 32, hidden_size: 32, num_layers: 2, num_heads: 4, n_kv_heads: 2, intermediate_size: 64}}
optimizer: {{type: AdamW, betas: [0.9, 0.95], eps: 1.0e-8, weight_decay: 0.1}}
lr_schedule: {{type: cosine, learning_rate: 3.0e-3, lr_end: 3.0e-4, warmup_steps: 2}}
train_dataset: {{text: [{dir}/text.txt], shards: {dir}/shards}}
callback: {{checkpoint: {{save_interval: {save}}}}}
"""

# Steps of some milliseconds: of faster ones a busy machine may drop some on purpose, which is another matter.
SLOWER = ("--set", "runner_config.batch_size=8", "--set", "model_config.hidden_size=96", "--set", "model_config.seq_length=128")


def text(bytes_wanted=200_000):
    """English-like text with structure to learn, made here."""
    words = "the run is on an even keel and the loss falls slowly while every rank keeps its share of the batch".split()
    out, state = [], 1
    while sum(map(len, out)) + len(out) < bytes_wanted:
        for _ in range(1000):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            out.append(words[(state >> 33) % len(words)])
    return " ".join(out)[:bytes_wanted]


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="keel-test-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def write(self, name, content):
        with open(self.path(name), "w") as f:
            f.write(content)
        return self.path(name)

    def config(self, steps=40, accumulation=1, save=0, extra="", name="train.yaml"):
        if not os.path.exists(self.path("text.txt")):
            self.write("text.txt", text())
        return self.write(name, TINY.format(steps=steps, accumulation=accumulation, save=save, dir=self.dir) + extra)

    def preset(self, name):
        return os.path.join(SOURCE, "configs", name)

    def job(self, ranks, *args):
        """The argument list of a training job."""
        program = [TRAIN, *args]
        return program if ranks == 1 else ["mpirun", "--oversubscribe", "-n", str(ranks), *program]

    def run_program(self, args, expect=0, timeout=120):
        p = subprocess.run(args, capture_output=True, text=True, env=ENV, timeout=timeout, cwd=self.dir)
        if expect is not None:
            self.assertEqual(p.returncode, expect, f"{args}\nstdout: {p.stdout[-2000:]}\nstderr: {p.stderr[-2000:]}")
        return p

    def start(self, args, log, env=ENV):
        """The job in the background, what it prints in LOG; killed with all its processes at the end of the test."""
        with open(log, "w") as f:
            p = subprocess.Popen(args, env=env, stdout=f, stderr=f, start_new_session=True, cwd=self.dir)
        self.addCleanup(self.kill_tree, p)
        return p

    def tree_of(self, p):
        """Process ids of the job, mpirun first."""
        tree = [p.pid]
        for pid in tree:
            children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout.split()
            tree += map(int, children)
        return tree

    def ranks_of(self, p):
        """Process ids by rank."""
        found = {}
        for pid in self.tree_of(p):
            with open(f"/proc/{pid}/environ", "rb") as f:
                for entry in f.read().split(b"\0"):
                    if entry.startswith(b"OMPI_COMM_WORLD_RANK="):
                        found[int(entry.split(b"=")[1])] = pid
        return found

    def kill_tree(self, p):
        for pid in self.tree_of(p):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        p.wait()

    def wait_for(self, what, seconds=30):
        deadline = time.time() + seconds
        while not what():
            self.assertLess(time.time(), deadline, "it never came")
            time.sleep(0.05)

    def steps_made(self, output="out"):
        path = self.path(output, "train.csv")
        if not os.path.exists(path):
            return 0
        with open(path) as f:
            return max(sum(1 for _ in f) - 1, 0)

    def report(self, path):
        return json.loads(self.run_program([KEEL, "report", path, "--format", "json"]).stdout)

    def losses(self, directory):
        """The exact losses the trainer wrote: text of step,loss."""
        with open(os.path.join(directory, "train.csv")) as f:
            return [line.split(",")[:3] for line in f]


def main():
    unittest.main(verbosity=2)
