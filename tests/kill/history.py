# SPDX-License-Identifier: Apache-2.0
"""What readers of versions wrote down (examples/demo/reader.c, --log): a line for each acquire, with the version, the
digest that it claims, and the digest of its bytes."""


def torn_and_stale(logs, versions):
    """-> two lists, in words.  `versions`: what the registry has, by number."""
    torn, stale = [], []
    for log in logs:
        last = 0
        written = log.read_text()
        for line in written[:written.rfind("\n") + 1].splitlines():    # what a killed reader began is no line
            fields = line.split()
            number, claims, found = int(fields[0]), fields[1], fields[2]
            if claims != found or (number in versions and versions[number]["digest"] != found):
                torn.append(f"{log.name}: version {number} claims {claims}, its bytes are {found}")
            if number < last:
                stale.append(f"{log.name}: went back from version {last} to {number}")
            last = number
    return torn, stale
