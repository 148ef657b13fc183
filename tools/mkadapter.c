/* SPDX-License-Identifier: Apache-2.0 */
/* mkadapter: makes a PEFT directory with the shape of a real LoRA, filled from a seed: for the demo, tests, benchmarks. */
#include "bench/shape.h"
#include "core/errors.h"
#include "core/option.h"
#include "core/process.h"
#include "formats/peft.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    int shape;
    int64_t rank, narrow, seed, tensors;
    bool force, is_quiet;
} args_t;
static const option_t OPTIONS[] = {
    {"shape", 0, OPTION_CHOICE, SHAPE_NAMES, NULL, "qwen2.5-0.5b", "model whose linear layers get a LoRA",
     offsetof(args_t, shape)},
    {"rank", 'r', OPTION_INTEGER, "N", NULL, "16", "rank, 1 to 1024", offsetof(args_t, rank)},
    {"narrow", 0, OPTION_INTEGER, "N", NULL, "1",
     "divide every width of the shape by N, 1 to 1024: as many tensors, fewer bytes",
     offsetof(args_t, narrow)},
    {"seed", 's', OPTION_INTEGER, "N", NULL, "1", "other seeds give other bytes", offsetof(args_t, seed)},
    {"tensors", 0, OPTION_INTEGER, "N", NULL, "0",
     "instead of a shape: N tiny tensors, an even number up to 1000000", offsetof(args_t, tensors)},
    {"force", 'f', OPTION_FLAG, NULL, NULL, NULL, "write into DIR though it exists", offsetof(args_t, force)},
    {"quiet", 'q', OPTION_FLAG, NULL, NULL, NULL, "do not say what was made", offsetof(args_t, is_quiet)},
    {0}};
static const char *const ARGS[] = {"DIR", NULL};
static const option_set_t SET = {"mkadapter",
                                 "[OPTION...] DIR",
                                 "Makes DIR, a PEFT adapter (adapter_config.json, adapter_model.safetensors) "
                                 "of bf16 tensors in the shape of\n"
                                 "a real LoRA on all linear layers.  The same options give the same bytes.",
                                 NULL,
                                 OPTIONS,
                                 NULL,
                                 ARGS,
                                 1,
                                 "Exit status: 0 ok, DIR is there; 2 usage; 9 this machine: DIR exists or "
                                 "cannot be written, or memory ran out.\n\n"
                                 "Examples:\n  mkadapter ./my-peft-dir\n  mkadapter --force --seed 2 "
                                 "./my-peft-dir    other bytes, as after more training\n"
                                 "  mkadapter --shape llama-3.1-8b --rank 32 --seed 2 ./larger"};

static int write_files(const manifest_input_t *in, bool is_quiet, int dir_fd, heddle_error_t *error)
{
    manifest_t manifest = {0};
    buf_t encoded = {0};
    digest_t h1;
    int rc = manifest_build(in, &encoded, &h1);
    if (rc) error_fail(error, rc, "no memory for a manifest");
    else rc = manifest_decode(buf_view(&encoded), &manifest, error);
    if (!rc) rc = peft_write(dir_fd, &manifest, in->payload, error);
    if (!rc && !is_quiet) {
        char text[HEDDLE_DIGEST_TEXT];
        digest_text(&h1, text);
        printf("%u tensors, %llu bytes, %s\n", manifest.tensor_count,
               (unsigned long long)in->layout->data_bytes, text);
    }
    manifest_fini(&manifest);
    buf_fini(&encoded);
    return rc;
}

static int make_files(const args_t *args, const shape_table_t *table, const layout_t *layout, int dir_fd,
                      heddle_error_t *error)
{
    uint8_t *payload =
        mmap(NULL, layout->payload_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (payload == MAP_FAILED)
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for %llu bytes",
                          (unsigned long long)layout->payload_bytes);
    uint64_t state = shape_seed((uint64_t)args->seed);
    for (uint32_t i = 0; i < table->count; i++)
        shape_fill(payload + layout->places[i], layout->sizes[i], &state);
    buf_t config = {0};
    shape_config(args->shape, (uint32_t)args->rank, &config);
    manifest_input_t in = {
        table->rows, layout, buf_view(&config), bytes_of("{\"format\":\"pt\"}", 15), "lora", "", payload};
    int rc = write_files(&in, args->is_quiet, dir_fd, error);
    buf_fini(&config);
    munmap(payload, layout->payload_bytes);
    return rc;
}

static int make(const args_t *args, int dir_fd, heddle_error_t *error)
{
    shape_table_t table = {0};
    layout_t layout = {0};
    int rc = args->tensors ? shape_tiny_table((uint32_t)args->tensors, &table)
                           : shape_table(args->shape, (uint32_t)args->rank, (uint32_t)args->narrow, &table);
    if (rc) return error_fail(error, rc, "no memory for a table of tensors");
    rc = layout_make(table.rows, table.count, &layout, error);
    if (!rc) rc = make_files(args, &table, &layout, dir_fd, error);
    if (!rc) layout_fini(&layout);
    shape_table_fini(&table);
    return rc;
}

static int check_args(const args_t *args, heddle_error_t *error)
{
    bool is_fine = args->rank >= 1 && args->rank <= 1024 && args->narrow >= 1 && args->narrow <= 1024 &&
                   args->tensors >= 0 && args->tensors <= 1000000 && args->tensors % 2 == 0;
    if (is_fine) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "--rank, --narrow or --tensors is out of range");
    error_expected(error, "rank and narrow 1..1024; tensors even, 0..1000000");
    return rc;
}

/* As `heddle` says what went wrong. */
static void print_error(const heddle_error_t *e)
{
    bool is_named = !strncmp(e->message, "mkadapter: ", 11); /* the option parser names the program itself */
    fprintf(stderr, "mkadapter: %s: %s\n", heddle_err_name(e->code), e->message + (is_named ? 11 : 0));
    if (e->expected[0]) fprintf(stderr, "  expected: %s\n", e->expected);
    if (e->found[0]) fprintf(stderr, "  found:    %s\n", e->found);
    if (e->hint[0]) fprintf(stderr, "  hint:     %s\n", e->hint);
}

int main(int argc, char **argv)
{
    args_t args = {0};
    const char *dir = NULL;
    heddle_error_t error = {0};
    int rc = option_parse(&SET, argc, argv, &args, &dir, &error);
    if (rc == 1) return process_end(0);
    if (!rc) rc = check_args(&args, &error);
    if (!rc && mkdir(dir, 0777) != 0 && !(errno == EEXIST && args.force)) {
        bool is_there = errno == EEXIST;
        rc = error_fail(&error, is_there ? HEDDLE_ERR_DATA_DIR : HEDDLE_ERR_INTERNAL, "cannot make %s: %s",
                        dir, strerror(errno));
        if (is_there)
            error_hint(
                &error,
                "name another directory, or write into this one with --force; --seed N gives other bytes");
    }
    if (!rc && args.force) {
        char path[4096];
        snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
        unlink(path);
        snprintf(path, sizeof path, "%s/adapter_config.json", dir);
        unlink(path);
    }
    int fd = rc ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!rc && fd < 0)
        rc = error_fail(&error, HEDDLE_ERR_INTERNAL, "cannot open %s: %s", dir, strerror(errno));
    if (!rc) rc = make(&args, fd, &error);
    if (fd >= 0) close(fd);
    if (rc) print_error(&error);
    return process_end(heddle_err_exit(rc));
}
