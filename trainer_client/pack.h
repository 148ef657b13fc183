/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_client/pack.h: one adapter on its way into a region: table and layout first, then the bytes, then
 * the seal.
 *
 *   pack_new --(a region of pack_bytes)--> pack_lay --(every tensor is written)--> pack_seal
 *
 *   content   | payload: tensors, padding zero | manifest |
 *
 * A tensor is written by the caller, at pack_tensor, or by pack_write.  That digests what it has just
 * copied: it is in the cache, where pack_seal has to fetch it from memory again.
 *
 * The caller's table, config and metadata are copied by pack_new.  The next version of an adapter mostly has
 * the same ones: pack_renew takes what was checked, laid out and copied for the version before, at the cost
 * of a comparison.  The application's thread, and for pack_write alone others that pack_fill waits for: one
 * core cannot saturate the memory, and the trainer's own loop waits until it is done.  Nothing else blocks;
 * pack_seal reads once what pack_write has not digested.  The region is borrowed from pack_lay until
 * pack_renew or pack_destroy. */
#ifndef TRAINER_CLIENT_PACK_H
#define TRAINER_CLIENT_PACK_H

#include "core/crew.h"
#include "formats/kind.h"
#include "formats/manifest.h"
#include "proto/msg.h"

typedef struct {
    const heddle_tensor_t *tensors;
    uint32_t count;
    bytes_t config, metadata;
    const content_kind_t *kind;
} pack_input_t;

enum { PACK_DIGESTED = 1, PACK_HANDED_OUT = 2 };

typedef struct pack {
    const content_kind_t *kind;
    heddle_tensor_t *tensors; /* in the caller's order */
    layout_t layout;
    bytes_t config, metadata;
    char features[192], base_model[256];
    void *base;       /* NULL before pack_lay */
    uint8_t *marks;   /* PACK_* of each row */
    uint64_t *leaves; /* of the payload; NULL where nothing was digested yet */
    arena_t arena;    /* of all copies */
} pack_t;

/* What is known once the bytes are there. */
typedef struct {
    digest_t digest;
    msg_part_t part;
    uint64_t content_bytes;
    uint32_t chunk_count;
} sealed_t;

/* BAD_ADAPTER, NO_LORA, UNSUPPORTED_PEFT_TYPE, UNSUPPORTED_FEATURE (memory that is not the host's),
 * LIMIT, NO_MEMORY. */
int pack_new(const pack_input_t *in, pack_t **ret_pack, heddle_error_t *error);
/* True: p is as pack_new would make it from that input, no tensor is written, and the same memory is used.
 * False: the input is another one than p's, and p is as before. */
bool pack_renew(pack_t *p, const pack_input_t *in);
/* Memory that the region must have. */
uint64_t pack_bytes(const pack_t *p);
/* `base`: pack_bytes of memory, of any content. */
void pack_lay(pack_t *p, void *base);
/* The same where the caller writes whole pages of every row, padding too, and their leaves to what this
 * returns, before pack_seal.  NULL: no memory. */
uint64_t *pack_lay_digested(pack_t *p, void *base);
/* Where row `index` belongs, 4 KiB aligned; NULL when there is no such row.  The caller may write there until
 * pack_seal, which therefore digests this row, whatever pack_write did, and counts it as written. */
void *pack_tensor(pack_t *p, uint32_t index);
/* sources[i], unless NULL, has the bytes of row i, and does not overlap the payload: begin says which rows
 * will be written, write copies what of them lies in [from, to) of the payload, whole pages.  Parts that do
 * not overlap may be written at once.  Write the whole payload before calling anything else. */
void pack_write_begin(pack_t *p, const void *const *sources);
void pack_write(const pack_t *p, const void *const *sources, uint64_t from, uint64_t to);
enum { PACK_THREADS_MAX = 4 };
/* How many threads are to fill so many bytes where there may be `most`, the caller's one of them: 1 to
 * PACK_THREADS_MAX. */
uint32_t pack_fill_threads(uint64_t payload_bytes, uint32_t most);
/* pack_write_begin and pack_write of everything, by the calling thread and those of `crew` that wake in time;
 * NULL: by the calling thread alone. */
void pack_fill(pack_t *p, const void *const *sources, crew_t *crew);
/* Digests, and writes the manifest behind the tensors: nothing may be written afterwards.
 * USAGE naming a tensor that has bytes and was neither written nor handed out, NO_MEMORY, or what
 * core/stop.h ended it with. */
int pack_seal(pack_t *p, sealed_t *ret_sealed, heddle_error_t *error);
/* Accepts NULL and pointers to NULL. */
void pack_destroy(pack_t **p);

#endif
