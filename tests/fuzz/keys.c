/* SPDX-License-Identifier: Apache-2.0 */
/* | u8 which | text |: a key file, or the role of a key.  A file that is read names keys that are valid
 * and, written as we write it, is read the same. */
#include "broker/keys/auth.h"
#include "core/log.h"
#include "core/names.h"
#include "tests/fuzz/fuzz.h"
#include "wire/keyring.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int read_as_file(const char *text, size_t bytes, key_pair_t *ret_pair, heddle_error_t *error)
{
    char path[64];
    int fd = memfd_create("key", MFD_CLOEXEC);
    MUST(fd >= 0 && fchmod(fd, 0600) == 0 && write(fd, text, bytes) == (ssize_t)bytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int rc = key_read(path, ret_pair, error);
    close(fd);
    return rc;
}

static void check_file(const char *text, size_t bytes)
{
    heddle_error_t error;
    key_pair_t pair, again;
    char written[256];
    int rc = read_as_file(text, bytes, &pair, &error);
    if (rc) {
        MUST(rc == HEDDLE_ERR_DATA_DIR && error.code == rc && error.message[0]);
        return;
    }
    MUST(key_is_valid(pair.public_key) && (!pair.secret_key[0] || key_is_valid(pair.secret_key)));
    int n = snprintf(written, sizeof written, "public %s\n", pair.public_key);
    if (pair.secret_key[0])
        n += snprintf(written + n, sizeof written - (size_t)n, "secret %s\n", pair.secret_key);
    MUST(read_as_file(written, (size_t)n, &again, &error) == HEDDLE_OK);
    MUST(!strcmp(pair.public_key, again.public_key) && !strcmp(pair.secret_key, again.secret_key));
}

static void check_role(const char *text, size_t bytes)
{
    heddle_error_t error;
    grant_t grant;
    (void)bytes;
    key_is_valid(text);
    if (grant_parse(text, &grant, &error)) MUST(error.code && error.message[0]);
    else
        MUST(grant.role >= AUTH_ADMIN && grant.role <= AUTH_WORKER &&
             (!grant.adapter[0] || !strcmp(grant.adapter, "*") || name_is_valid(grant.adapter)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t in = {data, size};
    bool is_file = input_byte(&in) % 2 == 0;
    size_t bytes = in.left;
    char *text = input_text(&in, bytes);
    log_set_level(LOG_ERROR);
    if (is_file) check_file(text, bytes);
    else check_role(text, bytes);
    free(text);
    return 0;
}
