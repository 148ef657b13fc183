/* SPDX-License-Identifier: Apache-2.0 */
/* The general hint for each code, used if the failure itself has none. */
#include "cli/cli.h"

#include <stdio.h>

typedef struct { int code; const char *hint; } hint_t;
#define H(NAME, text) {HEDDLE_ERR_##NAME, text}
static const hint_t HINTS[] = {
    H(USAGE, "`heddle COMMAND --help` lists its options and arguments"),
    H(BAD_NAME, "names are a letter or digit, then up to 127 of letters, digits, '.', '_', '-'"),
    H(INSECURE_ADDRESS, "--insecure allows it, on a network that you trust"),
    H(NOT_FOUND, "`heddle adapters` and `heddle versions NAME` list what there is"),
    H(REQUEST_CONFLICT, "use another --request-id for other bytes"),
    H(WRITER_HELD, "`heddle adapters` names the writer; --takeover fences it"),
    H(FENCED, "another session took its place: end one of the two, then try again"),
    H(WORKER_ALIVE, "end that worker, or give this one another --name"),
    H(UNCHANGED, "--if-unchanged skip takes the version that is there, publish makes another"),
    H(STEP_BACK, "--allow-step-back where a lower step is meant"),
    H(HELD, "`heddle resume NAME` ends the hold: it activates the newest version"),
    H(NOT_ACTIVATABLE, "`heddle versions NAME` lists those that are live; publish the bytes again"),
    H(TOO_FEW_SLOTS, "start the worker with more --slots"),
    H(UCX_VERSION, "install the same UCX on every host"),
    H(WIRE_VERSION,
      "install releases that share a wire version: `heddle --version` on both sides, brokers first"),
    H(DATA_LOCKED, "end the broker that has it, or name another --data"),
    H(DEADLINE, "`heddle workers` shows which workers lag, and why; a longer --deadline gives more time"),
    H(NO_WORKERS, "start one: `heddle worker --adapter NAME`, or the engine plug (python -m heddle.engine)"),
    H(DENIED, "ask the administrator of the broker for a role that may"),
    H(UNAVAILABLE, "is heddle-broker running there? --broker or HEDDLE_BROKER names another address"),
    H(BAD_ADAPTER, "save the adapter again with PEFT's save_pretrained"),
    H(NO_LORA, "is this the adapter's own directory? its tensors are named lora_A, lora_B"),
    H(UNSUPPORTED_PEFT_TYPE, "only adapters of peft_type LORA are carried"),
    H(UNSUPPORTED_FEATURE, "save the adapter without that feature"),
    H(LIMIT, "make it smaller, or split it"),
    H(PROTOCOL, "compare `heddle --version` on both sides: they may be of different releases"),
    H(VERSION_FAILED,
      "`heddle versions NAME@V` tells which worker, in which phase, and why; then publish again"),
    H(VERSION_LOST, "publish the bytes again"),
    H(DIGEST_MISMATCH, "end the worker that is named: it fetches the version again when it is back"),
    H(DATA_DIR, "name a directory that this user may write with --data"),
    H(DATA_NEWER, "run the newer release, or name another --data"),
    H(NO_SPACE, "make room on the broker's disk, then try again"),
    H(ADDRESS_IN_USE, "end what listens there, or --listen elsewhere; `:*` takes a free port"),
    H(NO_MEMORY, "free memory or descriptors, then try again"),
    H(NO_SLOT, "let readers release old versions, or start the worker with more --slots"),
    H(INTERRUPTED, "the request may still be carried out: `heddle status` shows the result"),
    H(INTERNAL, "run it again with --log-level debug, and report the output"),
};

const char *cli_hint(int code)
{
    for (size_t i = 0; i < sizeof HINTS / sizeof *HINTS; i++)
        if (HINTS[i].code == code) return HINTS[i].hint;
    return NULL;
}
