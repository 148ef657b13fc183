/* SPDX-License-Identifier: Apache-2.0 */
/* demo-filecost FILE DIR: what today's way costs at the least: writes the bytes of FILE to DIR in one go, reads them back into memory that was
 * touched before, no sync, no parsing; median and worst of 7.  Prints one JSON line. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RUNS = 7 };

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int by_value(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* All of it, in as many calls as the kernel wants. */
static int move(int fd, char *data, size_t bytes, int writing)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = writing ? write(fd, data + done, bytes - done) : read(fd, data + done, bytes - done);
        if (n <= 0) return -1;
        done += (size_t)n;
    }
    return 0;
}

static int once(const char *path, char *data, size_t bytes, double *ret_write, double *ret_read)
{
    double start = now_ms();
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || move(fd, data, bytes, 1)) return -1;
    close(fd);
    double wrote = now_ms();
    fd = open(path, O_RDONLY);
    if (fd < 0 || move(fd, data, bytes, 0)) return -1;
    close(fd);
    *ret_write = wrote - start;
    *ret_read = now_ms() - wrote;
    unlink(path);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: demo-filecost FILE DIR\n");
        return 2;
    }
    struct stat st;
    int fd = open(argv[1], O_RDONLY);
    if (fd < 0 || fstat(fd, &st) != 0) {
        perror(argv[1]);
        return 9;
    }
    size_t bytes = (size_t)st.st_size;
    char *data = malloc(bytes), path[4096];
    if (!data || move(fd, data, bytes, 0)) {
        perror(argv[1]);
        return 9;
    }
    close(fd);
    snprintf(path, sizeof path, "%s/filecost.tmp", argv[2]);
    double writes[RUNS], reads[RUNS];
    for (int i = 0; i < RUNS; i++)
        if (once(path, data, bytes, &writes[i], &reads[i])) {
            perror(path);
            unlink(path);
            return 9;
        }
    qsort(writes, RUNS, sizeof *writes, by_value);
    qsort(reads, RUNS, sizeof *reads, by_value);
    printf(
        "{\"bytes\":%zu,\"write_ms\":%.2f,\"write_worst_ms\":%.2f,\"read_ms\":%.2f,\"read_worst_ms\":%.2f}\n",
        bytes, writes[RUNS / 2], writes[RUNS - 1], reads[RUNS / 2], reads[RUNS - 1]);
    free(data);
    return 0;
}
