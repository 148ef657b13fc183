/* SPDX-License-Identifier: Apache-2.0 */
/* core/limits.h: every count and size that a peer or a file controls, each with its reason.  Constants alone:
 * any thread. */
#ifndef CORE_LIMITS_H
#define CORE_LIMITS_H

#define LIMIT_PAGE_BYTES 4096u       /* alignment of tensors in a payload; bytes of a leaf */
#define LIMIT_CHUNK_MIN_BYTES 65536u /* one chunk and its header fit one 128 KiB UCX segment */
#define LIMIT_CHUNK_MAX_BYTES 262144u
#define LIMIT_TENSORS 1000000u /* a DeepSeek-V3 LoRA per expert has 90,064 */
#define LIMIT_TENSOR_NAME_BYTES 1024u
#define LIMIT_TENSOR_DIMS 16u /* PEFT's deepest is 4 */
#define LIMIT_MANIFEST_BYTES (64u << 20)
/* adapter_config.json: half a frame, as PUBLISH carries it; a real one has 1-40 KB */
#define LIMIT_CONFIG_BYTES (1u << 19)
#define LIMIT_METADATA_BYTES (1u << 20)
#define LIMIT_EXPORT_BYTES (1ull << 33)     /* of a registry: the most that etcd is run with */
#define LIMIT_SAFETENSORS_HEADER 100000000u /* upstream's own cap */
#define LIMIT_JSON_DEPTH 64u
#define LIMIT_PAYLOAD_BYTES (1ull << 40)
#define LIMIT_REGION_BYTES (1ull << 40) /* without its header */
#define LIMIT_CONTENT_BYTES (LIMIT_PAYLOAD_BYTES + LIMIT_PAGE_BYTES + LIMIT_MANIFEST_BYTES) /* of a version */

/* ZMQ_MAXMSGSIZE; a join with 256 adapters and all it holds is the largest */
#define LIMIT_FRAME_BYTES (1u << 20)
#define LIMIT_FRAME_DEPTH 8u       /* msgpack nesting, in messages */
#define LIMIT_FRAME_NODES 65536u   /* msgpack objects in one frame */
#define LIMIT_REPORT_NODES 262144u /* the same in a page of a report */
#define LIMIT_REPORT_DEPTH 16u     /* an adapter's config inside a version inside a list */
/* in one map of a message: twice what any has; keeps the search for duplicates short */
#define LIMIT_MAP_KEYS 64u
#define LIMIT_WORD_BYTES 64u   /* words of ours in a message: phases, codes, states, commands */
#define LIMIT_AUTH_BYTES 4096u /* a key or a signed token */
#define LIMIT_ADDRESSES 4u     /* of a data plane: one for each family */
#define LIMIT_DEVICES 256u     /* network devices of one host, virtual ones too */
#define LIMIT_FEATURES 64u
/* versions that a publisher serves, restated: it has few regions */
#define LIMIT_OPEN_SERVED 64u
#define LIMIT_SERVED 256u /* sources that one fetch took bytes from, or lost, by the end */
/* workers that a rollout's message names; its counts tell of the others */
#define LIMIT_MISSING 1024u
#define LIMIT_NAMED_WORKERS 1024u      /* workers that one question names */
#define LIMIT_DURATION_MS 4294967295u  /* 49 days: far from overflow when it becomes microseconds */
#define LIMIT_EXACT ((1ull << 53) - 1) /* versions, counters: what every reader of JSON holds exactly */
#define LIMIT_CHUNKS (LIMIT_PAYLOAD_BYTES / LIMIT_CHUNK_MAX_BYTES)
#define LIMIT_ADDRESS_BYTES 1024u /* a UCX worker address: 48-186 measured */
#define LIMIT_ADAPTERS_PER_WORKER 256u
#define LIMIT_SLOTS 64u        /* per adapter */
#define LIMIT_HELD 4096u       /* versions restated in one join */
#define LIMIT_FORMER_TOKENS 8u /* that a member restates: one for each start of the broker */
/* of these, with times and regions, less two for each of `fetched`: a join fits */
#define LIMIT_HELD_WHOLE 512u
#define LIMIT_LABELS 32u
#define LIMIT_BROKERS 17u /* of one registry, the one that leads among them */
#define LIMIT_RANKS 4096u /* of one group of workers: a counter each, for each version */
#define LIMIT_META 32u
#define LIMIT_PARTS 64u
#define LIMIT_VERSION_PARTS 1u /* that this release takes; a message may name LIMIT_PARTS */
#define LIMIT_SOURCES 8u
/* workers that a version names as waited for until they were gone; others are counted */
#define LIMIT_GONE 4u
/* fetches of a version that outlast the rows of their workers; others are counted */
#define LIMIT_FORMER 128u
#define LIMIT_TEXT_BYTES 4096u      /* free text in a message: errors, meta values */
#define LIMIT_PENDING_QUERIES 1024u /* waits, activations, verifications in progress at a broker */
#ifndef LIMIT_EVENTS                /* a fuzz build has few, so that the log turns over */
#define LIMIT_EVENTS 10000u         /* kept by a broker */
#endif
#define LIMIT_PEERS 65536u
#define LIMIT_ADAPTERS 16384u       /* at one broker, without those of which only numbers are left */
#define LIMIT_ADAPTER_ROWS 65536u   /* with them: a number is never given twice */
#define LIMIT_KEYS 1024u            /* in a broker's table, revoked ones too */
#define LIMIT_ROLES 32u             /* of one key */
#define LIMIT_INVITATION_USES 1000u /* keys that one invitation enters: fewer than a table has room for */
#define LIMIT_HISTORY 1024u         /* ended versions of an adapter that a broker remembers */
/* waiting for one connection, each way: a join with 256 adapters is answered by a few frames for each */
#define LIMIT_QUEUE_FRAMES 4096u

#define LIMIT_ASK_RANGES 16u      /* ranges in one ASK frame */
#define LIMIT_ASKS_PER_PEER 1024u /* standing asks that one source keeps for one peer */
/* in flight per source, of all adapters of a receiver: more adds nothing and delays a cancel (measured) */
#define LIMIT_WINDOW_BYTES (2u << 20)

/* connections that wait for a region at one process, a descriptor each: four times the workers of a large
 * host */
#define LIMIT_HANDOVERS 64u
#define LIMIT_WATCHERS 256u /* processes that watch what one process offers, a descriptor each */
#define LIMIT_OFFERED 64u   /* regions that one process lists, to be mapped in advance by others */
#endif
