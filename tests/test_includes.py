#!/usr/bin/python3
"""Reads every #include line and fails on any that points up or sideways in the house, and on two files of one name.

usage: test_includes.py [TREE]     without TREE: checks itself on made-up trees, then this one
"""
import os
import re
import sys
import tempfile
import unittest

# What a room may include besides itself. configs sees one header of probe.
BELOW = {
    "probe": set(),
    "configs": {"probe/status.h"},
    "collectors": {"probe", "configs"},
    "train": {"probe", "configs"},
    "analyzers": {"collectors", "probe", "configs"},
    "tools": {"analyzers", "train", "collectors", "probe", "configs"},
    "tests": {"tools", "analyzers", "train", "collectors", "probe", "configs", "tests"},
}
# Libraries that only some folders may know. probe/ knows the C library alone.
ONLY = {
    "mpi.h": ("collectors/mpi", "train", "tools", "tests"),
    "yaml.h": ("configs", "tests"),
    "cblas.h": ("train", "tests"),
}
FOREIGN = re.compile(r"(mpi|hdf5|H5.*|yaml|jansson|pcre2|cblas|omp|zlib|curl/.*|protobuf-c/.*)\.h")
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
SKIPPED = {".git", "build", "runs", "data", "corpus", "__pycache__"}
SAME_NAME_ALLOWED = {"CMakeLists.txt", "__init__.py", ".gitignore"}


def files_of(tree):
    for folder, folders, names in os.walk(tree):
        folders[:] = sorted(f for f in folders if f not in SKIPPED and not f.startswith("build-"))
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), tree)


def read_includes(tree, path):
    with open(os.path.join(tree, path), encoding="utf-8", errors="replace") as f:
        for number, line in enumerate(f, 1):
            found = INCLUDE.match(line)
            if found:
                yield number, found[1], found[2]


def hook_headers(tree):
    """What a training program sees of probe/: keel.h and all that it includes."""
    seen, todo = set(), ["probe/keel.h"]
    while todo:
        header = todo.pop()
        if header in seen or not os.path.exists(os.path.join(tree, header)):
            continue
        seen.add(header)
        todo += [name for _, quote, name in read_includes(tree, header) if quote == '"']
    return seen


def judge_quoted(tree, path, name, hooks):
    room = path.split("/")[0]
    target = name.split("/")[0]
    if name.endswith(".pb-c.h"):
        return None  # made by protoc-c in the build folder
    if name.startswith(".") or target not in BELOW:
        return f'"{name}" is not written from the top of the tree'
    if not os.path.exists(os.path.join(tree, name)):
        return f'"{name}" does not exist'
    if room == target:
        return None
    if target not in BELOW[room] and name not in BELOW[room]:
        return f'"{name}": {room}/ may not use {target}/'
    if room == "train" and target == "probe" and name not in hooks:
        return f'"{name}": train/ may use the hook interface of probe/ alone, which is keel.h and what it includes'
    return None


def judge_angled(path, name):
    if path.startswith("probe/") and FOREIGN.fullmatch(name):
        return f"<{name}>: probe/ uses the C library alone"
    allowed = ONLY.get(name)
    if allowed and not any(path.startswith(folder + "/") for folder in allowed):
        return f"<{name}>: only {', '.join(allowed)} may use it"
    return None


def violations(tree):
    found, first = [], {}
    hooks = hook_headers(tree)
    for path in files_of(tree):
        name = os.path.basename(path)
        if name in first and name not in SAME_NAME_ALLOWED:
            found.append(f"{path}: the name {name} is taken by {first[name]}")
        first.setdefault(name, path)
        if path.split("/")[0] not in BELOW or not name.endswith((".c", ".h", ".def")):
            continue
        for number, quote, target in read_includes(tree, path):
            wrong = judge_quoted(tree, path, target, hooks) if quote == '"' else judge_angled(path, target)
            if wrong:
                found.append(f"{path}:{number}: {wrong}")
    return found


class Self(unittest.TestCase):
    """The check must be able to fail."""

    def judge(self, files):
        with tempfile.TemporaryDirectory() as tree:
            for path, text in files.items():
                os.makedirs(os.path.dirname(os.path.join(tree, path)), exist_ok=True)
                with open(os.path.join(tree, path), "w", encoding="utf-8") as f:
                    f.write(text)
            return violations(tree)

    HOUSE = {
        "probe/status.h": "",
        "probe/keel.h": '#include "probe/status.h"\n',
        "probe/kernel.h": "",
        "configs/yaml_reader.h": '#include "probe/status.h"\n#include <yaml.h>\n',
        "collectors/store.h": '#include "configs/yaml_reader.h"\n#include <hdf5.h>\n',
        "analyzers/rules.h": '#include "collectors/store.h"\n',
        "train/loop.c": '#include "probe/keel.h"\n#include "probe/status.h"\n#include <mpi.h>\n',
        "tools/main.c": '#include "analyzers/rules.h"\n  #  include "train/loop.h"\n',
        "train/loop.h": "",
        "build/keel.h": '#include "nowhere.h"\n',
    }

    def test_a_good_house(self):
        self.assertEqual(self.judge(self.HOUSE), [])

    def refuse(self, path, text, wanted):
        found = self.judge({**self.HOUSE, path: text})
        self.assertEqual(len(found), 1, found)
        self.assertIn(wanted, found[0])

    def test_up(self):
        self.refuse("probe/x.c", '\n#include "configs/yaml_reader.h"\n', "probe/x.c:2: ")
        self.refuse("collectors/x.c", '#include "analyzers/rules.h"\n', "collectors/ may not use analyzers/")
        self.refuse("configs/x.c", '#include "probe/keel.h"\n', "configs/ may not use probe/")
        self.refuse("probe/x.def", '#include "tools/main.c"\n', "probe/ may not use tools/")

    def test_sideways(self):
        self.refuse("train/x.c", '#include "collectors/store.h"\n', "train/ may not use collectors/")
        self.refuse("analyzers/x.c", '#include "train/loop.h"\n', "analyzers/ may not use train/")
        self.refuse("train/x.c", '#include "probe/kernel.h"\n', "hook interface")

    def test_not_from_the_top(self):
        self.refuse("probe/x.c", '#include "status.h"\n', "from the top")
        self.refuse("analyzers/x.c", '#include "../probe/status.h"\n', "from the top")
        self.refuse("analyzers/x.c", '#include "probe/nothing.h"\n', "does not exist")

    def test_libraries(self):
        self.refuse("probe/x.c", "#include <hdf5.h>\n", "C library alone")
        self.refuse("probe/x.c", "#include <H5Dpublic.h>\n", "C library alone")
        self.refuse("collectors/x.c", "#include <mpi.h>\n", "<mpi.h>: only")
        self.refuse("analyzers/x.c", "#include <yaml.h>\n", "<yaml.h>: only")

    def test_names(self):
        self.refuse("tools/status.h", "", "the name status.h is taken by probe/status.h")


def main():
    if len(sys.argv) == 1:
        result = unittest.main(argv=[sys.argv[0]], exit=False).result
        if not result.wasSuccessful():
            return 1
    tree = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = violations(tree)
    for line in found:
        print(line)
    if not found:
        print("every #include points down, every file name is unique")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
