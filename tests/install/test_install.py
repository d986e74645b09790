#!/usr/bin/python3
"""Installs into a scratch prefix and uses what is there as a stranger would: by pkg-config and by CMake.

environment: KEEL_BUILD the build folder, KEEL_C_FLAGS what a program needs beyond (sanitizers)
"""
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

BUILD = os.environ["KEEL_BUILD"]
FLAGS = os.environ.get("KEEL_C_FLAGS", "").split()
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
USER = os.path.join(SOURCE, "tests", "install", "user")


def run(*args, **env):
    p = subprocess.run(args, capture_output=True, text=True, timeout=240, env={**os.environ, **env})
    if p.returncode:
        raise AssertionError(f"{' '.join(args)}: exit {p.returncode}\n{p.stdout}\n{p.stderr}")
    return p.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.mkdtemp(prefix="keel-install-")
        cls.addClassCleanup(shutil.rmtree, cls.dir, ignore_errors=True)
        # Moved after the installation: nothing may remember where it was put.
        run("cmake", "--install", BUILD, "--prefix", os.path.join(cls.dir, "first"))
        cls.prefix = os.path.join(cls.dir, "prefix")
        os.rename(os.path.join(cls.dir, "first"), cls.prefix)
        found = [d for d, _, names in os.walk(cls.prefix) if "libkeel.so" in names]
        assert len(found) == 1, found
        cls.lib = found[0]

    def watch(self, program, name, *arguments):
        """The program finds its library, watches, and the installed keel names the fault."""
        directory = os.path.join(self.dir, name)
        run(program, directory, *arguments, LD_LIBRARY_PATH=self.lib)
        report = json.loads(run(os.path.join(self.prefix, "bin", "keel"), "report", directory, "--format", "json"))
        self.assertEqual(report["last_step"], 10)
        self.assertEqual([(i["rule"], i["first_step"]) for i in report["incidents"]], [("nonfinite", 7)])

    def test_pkg_config(self):
        path = {"PKG_CONFIG_PATH": os.path.join(self.lib, "pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "keel", **path).split()
        program = os.path.join(self.dir, "by-pkg-config")
        run("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", *FLAGS, os.path.join(USER, "watched.c"), "-o", program, *flags)
        self.watch(program, "run-pkg-config")

    def test_from_cpp_with_a_configuration_read(self):
        path = {"PKG_CONFIG_PATH": os.path.join(self.lib, "pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "keel", **path).split()
        program = os.path.join(self.dir, "from-cpp")
        compiler = shutil.which("g++") or "clang++"
        run(compiler, "-std=c++11", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", *FLAGS,
            os.path.join(USER, "watched.cpp"), "-o", program, *flags)
        self.watch(program, "run-cpp", os.path.join(self.prefix, "share", "keel", "monitor.yaml"))

    def test_cmake(self):
        build = os.path.join(self.dir, "by-cmake")
        run("cmake", "-S", USER, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_C_FLAGS={' '.join(FLAGS)}")
        run("cmake", "--build", build)
        self.watch(os.path.join(build, "watched"), "run-cmake")

    def test_only_the_interface_is_exported(self):
        lines = run("nm", "-D", "--defined-only", os.path.join(self.lib, "libkeel.so")).splitlines()
        names = {line.split()[-1].split("@")[0] for line in lines}
        declared = set()
        for folder, _, headers in os.walk(os.path.join(SOURCE)):
            if any(part in ("build", ".git", "tests", "train") for part in os.path.relpath(folder, SOURCE).split(os.sep)):
                continue
            for header in headers:
                if header.endswith(".h"):
                    with open(os.path.join(folder, header), encoding="utf-8") as f:
                        text = f.read()
                    declared |= {call.split("(")[0].split()[-1].lstrip("*") for call in text.split("KEEL_API ")[1:]}
        self.assertIn("keel_observe_active", names)
        self.assertIn("keel_assembly_open", names)
        self.assertEqual(names - declared, set())

        # And what an installed header declares can be linked.
        offered = set()
        for folder, _, headers in os.walk(os.path.join(self.prefix, "include", "keel")):
            for header in headers:
                with open(os.path.join(folder, header), encoding="utf-8") as f:
                    offered |= set(re.findall(r"(?m)^(?!static|typedef|return|//|#)[A-Za-z_][\w *]*?\b(keel_\w+)\(", f.read()))
        self.assertIn("keel_monitor_config_load", offered)
        self.assertEqual(offered - names, set())

    def test_programs_and_presets(self):
        for program in ("keel", "keel-train"):
            self.assertIn("usage:", run(os.path.join(self.prefix, "bin", program), "--help"))
        presets = os.listdir(os.path.join(self.prefix, "share", "keel"))
        for preset in ("demo.yaml", "gpt2-124m.yaml", "llama-tiny.yaml", "experts-tiny.yaml", "monitor.yaml", "monitor-full.yaml"):
            self.assertIn(preset, presets)
        self.assertRegex(run(os.path.join(self.prefix, "bin", "keel"), "lab", "--list"), r"(?m)^nan +fault ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
