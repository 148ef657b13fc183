# SPDX-License-Identifier: Apache-2.0
"""What sanitizers write about a process, by what it wrote to stderr."""
import re

# LeakSanitizer, when a process ends; the process then ends with 1.
LEAK = re.compile(r"ERROR: LeakSanitizer: detected memory leaks\n(.*?)^SUMMARY: \w+: (.*?)$", re.DOTALL | re.MULTILINE)
# Any other one: AddressSanitizer ends the process with 1, and after UBSan's line it goes on, and ends with 0.
ERROR = re.compile(r"(?:ERROR|WARNING): (?!Leak)\w+Sanitizer: .*|\S+: runtime error: .*")


def leaks_in(text):
    """-> for each report how much it is, and through which functions the first of it was allocated."""
    found = []
    for stacks, total in LEAK.findall(text):
        first = stacks.strip().split("\n\n")[0]
        functions = re.findall(r" in ([a-z_]\w*)", first)
        found.append(f"{total}, by {' < '.join(functions)}")
    return found


def errors_in(text):
    """-> the first line of each other report."""
    return ERROR.findall(text)


def reports(folder, find, name="*"):
    """-> what sanitizers reported of any process that wrote its stderr there, as NAME.err: `find` is leaks_in or errors_in."""
    return [f"{path.stem}: {what}" for path in sorted(folder.glob(f"{name}.err")) for what in find(path.read_text(errors="replace"))]
