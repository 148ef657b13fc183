# SPDX-License-Identifier: Apache-2.0
"""deploy/heddle.env: what the systemd units read, with every option of the daemons beside it."""
import textwrap

HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# Settings of heddle-broker.service and heddle-worker@.service; Debian installs it as /etc/default/heddle.
# The lists of options are made from the programs' own tables (tools/surfaces); [in brackets] each default.
"""


def listing(table):
    lines = [f"# {table.program}(1) takes:"]
    for o in table.options:
        if o.name in ("help", "version"):
            continue
        value = f" {o.value}" if o.takes_value else ""
        default = f" [{o.default}]" if o.default else ""
        variable = f" (${o.env})" if o.env else ""
        lines += textwrap.wrap(f"--{o.name}{value}: {o.doc}{default}{variable}", 110, initial_indent="#   ",
                               subsequent_indent="#       ", break_on_hyphens=False, break_long_words=False)
    return "\n".join(lines)


# As these say it: an option's own words are about one program.
DEFAULTS = {"HEDDLE_BROKER": "tcp://127.0.0.1:7700"}
SAID = {"HEDDLE_BROKER": "where workers and commands find the broker; where it listens itself: --listen in "
                         "HEDDLE_BROKER_OPTIONS"}


def variables(tables):
    """Variables that options read, each once, with its default."""
    found = {}
    for table in tables.values():
        for o in table.options:
            if o.env:
                found.setdefault(o.env, o)
    return [f"# {SAID.get(env) or o.doc + '; also for the command heddle(1)'}\n"
            f"#{env}={o.default or DEFAULTS.get(env, '')}" for env, o in sorted(found.items())]


def sample(tables):
    broker, worker = tables["broker"], tables["worker"]
    parts = [HEAD.rstrip(), *variables(tables),
             listing(broker)
             + "\n# The unit keeps the data in /var/lib/heddle/broker.\n"
               "#HEDDLE_BROKER_OPTIONS=--lease 4s --keep 3",
             listing(worker)
             + "\n# One file an instance, /etc/default/heddle-worker-NAME, tells what heddle-worker@NAME "
               "does.  Without it, NAME is\n"
               "# the adapter.  The unit exports to /var/lib/heddle/worker/NAME.\n"
               "#HEDDLE_WORKER_OPTIONS=--adapter policy"]
    return "\n\n".join(parts) + "\n"
