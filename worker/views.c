/* SPDX-License-Identifier: Apache-2.0 */
/* A version's tensors for other libraries: DLPack's managed tensors, each of which holds the version until
 * its deleter is called.
 *
 *   views   one for each tensor:  IDLE --take--> HELD --deleter--> GONE
 *   held    how many are HELD: with the first the slot is held once more, with the last let go of
 *   refs    of the memory of the views: their owner's, and one for each that is HELD
 *
 * The struct is DLPack's "dltensor" (github.com/dmlc/dlpack, include/dlpack/dlpack.h, DLManagedTensor): this
 * is the only file that knows its layout. */
#include "core/errors.h"
#include "worker/slots.h"

#include <stdlib.h>

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} dl_type_t;
struct DLManagedTensor {
    struct {
        void *data;
        struct {
            int32_t type, id;
        } device;
        int32_t ndim;
        dl_type_t dtype;
        int64_t *shape, *strides; /* in elements */
        uint64_t byte_offset;
    } tensor;
    void *context;
    void (*deleter)(struct DLManagedTensor *self);
};
enum { DL_CPU = 1 };

typedef enum { IDLE, HELD, GONE } view_state_t;
typedef struct {
    struct DLManagedTensor managed;
    atomic_int state;
} tensor_view_t;
struct heddle_views {
    atomic_uint refs, held;
    slot_t *slot; /* valid while the caller holds the snapshot, or a view is HELD */
    uint32_t count;
    tensor_view_t views[];
};

/* DLPack's DLDataTypeCode; bits 0: it has no such type that is not packed. */
static dl_type_t type_of(int dtype)
{
    enum { INT, UINT, FLOAT, BFLOAT = 4, COMPLEX, BOOL };
    enum { E4M3FN = 10, E4M3FNUZ, E5M2, E5M2FNUZ, E8M0FNU };
    static const uint8_t CODES[] = {
        [HEDDLE_DTYPE_BOOL] = BOOL,
        [HEDDLE_DTYPE_U8] = UINT,
        [HEDDLE_DTYPE_I8] = INT,
        [HEDDLE_DTYPE_F8_E5M2] = E5M2,
        [HEDDLE_DTYPE_F8_E4M3] = E4M3FN,
        [HEDDLE_DTYPE_F8_E8M0] = E8M0FNU,
        [HEDDLE_DTYPE_F8_E4M3FNUZ] = E4M3FNUZ,
        [HEDDLE_DTYPE_F8_E5M2FNUZ] = E5M2FNUZ,
        [HEDDLE_DTYPE_I16] = INT,
        [HEDDLE_DTYPE_U16] = UINT,
        [HEDDLE_DTYPE_F16] = FLOAT,
        [HEDDLE_DTYPE_BF16] = BFLOAT,
        [HEDDLE_DTYPE_I32] = INT,
        [HEDDLE_DTYPE_U32] = UINT,
        [HEDDLE_DTYPE_F32] = FLOAT,
        [HEDDLE_DTYPE_C64] = COMPLEX,
        [HEDDLE_DTYPE_F64] = FLOAT,
        [HEDDLE_DTYPE_I64] = INT,
        [HEDDLE_DTYPE_U64] = UINT,
    };
    _Static_assert(sizeof CODES == HEDDLE_DTYPE_COUNT, "a code for each type");
    uint32_t bits = heddle_dtype_bits(dtype);
    if (bits % 8 != 0) return (dl_type_t){0};
    return (dl_type_t){CODES[dtype], (uint8_t)bits, 1};
}

/* Views may outlive their owner, since other libraries hold them; the last reference frees them. */
static void unref(heddle_views_t *v)
{
    if (atomic_fetch_sub(&v->refs, 1) == 1) free(v);
}

/* [any thread] A deleter, which DLPack's consumers call once.  As long as the views are there, once more does
 * nothing. */
static void end(struct DLManagedTensor *managed)
{
    tensor_view_t *view = (tensor_view_t *)managed;
    heddle_views_t *v = managed->context;
    slot_t *slot = v->slot;
    int expected = HELD;
    if (!atomic_compare_exchange_strong(&view->state, &expected, GONE)) return;
    if (atomic_fetch_sub(&v->held, 1) == 1) slot_release(&slot);
    unref(v);
}

/* -> behind its extents and strides. */
static int64_t *fill(heddle_views_t *v, uint32_t index, int64_t *shape)
{
    const slot_t *slot = v->slot;
    const uint64_t *dims = slot->dims + slot->parts[0].manifest.dim_starts[index];
    manifest_row_t row;
    manifest_row(&slot->parts[0].manifest, index, &row);
    int64_t *strides = shape + row.ndim;
    int64_t step = 1;
    for (uint32_t i = row.ndim; i-- > 0;) {
        shape[i] = (int64_t)dims[i];
        strides[i] = step;
        if (row.bytes) step *= shape[i]; /* beside an extent of 0 others may be of any size */
    }
    v->views[index].managed = (struct DLManagedTensor){
        .tensor = {.data = row.bytes ? (uint8_t *)(uintptr_t)slot->parts[0].region->view + row.offset : NULL,
                   .device = {DL_CPU, 0},
                   .ndim = (int32_t)row.ndim,
                   .dtype = type_of(row.dtype),
                   .shape = shape,
                   .strides = strides},
        .context = v,
        .deleter = end,
    };
    return strides + row.ndim;
}

/* All views of a version are one allocation: a model has hundreds of tensors, and each needs its extents. */
int heddle_snapshot_views(const heddle_snapshot_t *s, heddle_views_t **ret_views)
{
    uint32_t count = s->parts[0].manifest.tensor_count;
    size_t heads = sizeof(heddle_views_t) + count * sizeof(tensor_view_t), extents = 0;
    for (uint32_t i = 0; i < count; i++) {
        manifest_row_t row;
        manifest_row(&s->parts[0].manifest, i, &row);
        extents += row.ndim;
    }
    heddle_views_t *v = calloc(1, heads + 2 * extents * sizeof(int64_t));
    if (!v) {
        heddle_error_t error;
        error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory for views of %s", s->tag);
        return error_publish(&error);
    }
    v->slot = (slot_t *)(uintptr_t)s;
    v->count = count;
    atomic_init(&v->refs, 1);
    int64_t *at = (int64_t *)(void *)((uint8_t *)v + heads);
    for (uint32_t i = 0; i < count; i++) at = fill(v, i, at);
    *ret_views = v;
    return HEDDLE_OK;
}

/* A type whose elements are packed into bytes has no DLPack type, and no view. */
static int check_index(const heddle_views_t *v, uint32_t index)
{
    heddle_error_t error;
    if (index >= v->count) {
        error_fail(&error, HEDDLE_ERR_USAGE, "there is no tensor %u in %s", index, v->slot->tag);
        error_expected(&error, "0 to %u", v->count - 1);
        return error_publish(&error);
    }
    if (v->views[index].managed.tensor.dtype.bits > 0) return HEDDLE_OK;
    error_fail(&error, HEDDLE_ERR_USAGE, "DLPack has no type for tensor %u of %s", index, v->slot->tag);
    error_hint(&error, "take its bytes as they are");
    return error_publish(&error);
}

/* A view is taken once: its deleter may run on any thread, and two consumers could not share one. */
static int take(heddle_views_t *v, uint32_t index, struct DLManagedTensor **ret_tensor)
{
    heddle_error_t error;
    int expected = IDLE;
    if (!atomic_compare_exchange_strong(&v->views[index].state, &expected, HELD)) {
        error_fail(&error, HEDDLE_ERR_USAGE, "tensor %u of %s was taken already", index, v->slot->tag);
        error_hint(&error, "make new views of the version");
        return error_publish(&error);
    }
    atomic_fetch_add(&v->refs, 1);
    if (atomic_fetch_add(&v->held, 1) == 0) slot_hold(v->slot);
    *ret_tensor = &v->views[index].managed;
    return HEDDLE_OK;
}

/* All or none: where one cannot be taken, those before it are put back. */
int heddle_views_take(heddle_views_t *v, const uint32_t *indexes, uint32_t count,
                      struct DLManagedTensor **ret_tensors)
{
    int rc = HEDDLE_OK;
    uint32_t taken = 0;
    for (uint32_t i = 0; !rc && i < count; i++) rc = check_index(v, indexes[i]);
    while (!rc && taken < count) rc = take(v, indexes[taken], &ret_tensors[taken]), taken += !rc;
    while (rc && taken > 0) {
        end(ret_tensors[--taken]);
        ret_tensors[taken] = NULL;
        atomic_store(&v->views[indexes[taken]].state, IDLE);
    }
    return rc;
}

void heddle_views_put(struct DLManagedTensor *tensor)
{
    if (tensor) tensor->deleter(tensor);
}

/* [any thread] Deleters may run meanwhile: the number may be old when it is read. */
uint32_t heddle_views_held(const heddle_views_t *v) { return atomic_load(&v->held); }

int heddle_views_is_held(const heddle_views_t *v, uint32_t index)
{
    return index < v->count && atomic_load(&v->views[index].state) == HELD;
}

/* Views that were taken stay valid: each has a reference of its own. */
void heddle_views_release(heddle_views_t **views)
{
    heddle_views_t *v = views ? *views : NULL;
    if (!v) return;
    *views = NULL;
    unref(v);
}
