/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a target over files, and over all files of directories: the corpus as a plain test, and one
 * finding again. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <sys/stat.h>

static int count;

static int replay_file(const char *path, size_t size)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(size); /* ends where the bytes end */
    bool whole = f && (data || size == 0) && fread(data, 1, size, f) == size;
    if (f) fclose(f);
    if (whole) {
        LLVMFuzzerTestOneInput(data, size);
        count++;
    } else {
        fprintf(stderr, "replay: cannot read %s\n", path);
    }
    free(data);
    return whole ? 0 : 1;
}

static int replay(const char *path);

static int replay_directory(const char *path)
{
    struct dirent **entries;
    int failed = 0, n = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char inside[4096];
        snprintf(inside, sizeof inside, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.') failed |= replay(inside);
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    return n < 0 ? 1 : failed;
}

static int replay(const char *path)
{
    struct stat st;
    if (stat(path, &st)) {
        fprintf(stderr, "replay: there is no %s\n", path);
        return 1;
    }
    return S_ISDIR(st.st_mode) ? replay_directory(path) : replay_file(path, (size_t)st.st_size);
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (int i = 1; i < argc; i++) failed |= replay(argv[i]);
    printf("replay: %d inputs\n", count);
    return failed || count == 0;
}
