# SPDX-License-Identifier: Apache-2.0
# A copy of the tree for tests that patch it.

# sync_tree SRC: the files as they are here, under SRC; unchanged ones keep their times, so that builds stay small.
# SRC/build is left alone: as deep below the copy as build/ is below the tree, so that ccache knows the files again.
# One process, because there are 2,000 files: commands for each of them took half a minute.
sync_tree() {
  python3 - "$1" <<'PY'
import filecmp
import os
import pathlib
import shutil
import subprocess
import sys

copy = pathlib.Path(sys.argv[1])
listed = subprocess.check_output(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
wanted = {name for name in os.fsdecode(listed).split("\0") if os.path.isfile(name)}
for name in wanted:
    there = copy / name
    if there.is_file() and filecmp.cmp(name, there, shallow=False):
        continue
    there.parent.mkdir(parents=True, exist_ok=True)
    there.unlink(missing_ok=True)
    shutil.copyfile(name, there)
    shutil.copymode(name, there)
for folder, folders, files in os.walk(copy):
    folder = pathlib.Path(folder)
    if folder == copy and "build" in folders:
        folders.remove("build")
    for file in files:
        if (folder / file).relative_to(copy).as_posix() not in wanted:
            (folder / file).unlink()
PY
}
