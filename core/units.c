/* SPDX-License-Identifier: Apache-2.0 */
#include "core/units.h"

#include "core/bytes.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *suffix;
    double factor;
} unit_t;

/* A plain decimal number and exactly one of the units. strtod alone would accept "inf", "0x1p3" and leading
 * blanks too. */
static bool parse_number(const char *text, const unit_t *units, double max, double *ret)
{
    size_t digits = strspn(text, "0123456789");
    size_t n = digits;
    if (text[n] == '.') n += 1 + strspn(text + n + 1, "0123456789");
    if (digits == 0 || n > 20) return false;
    double value = strtod(text, NULL);
    for (const unit_t *u = units; u->suffix; u++)
        if (!strcmp(text + n, u->suffix)) {
            *ret = value * u->factor;
            return *ret <= max;
        }
    return false;
}

bool units_parse_duration(const char *text, uint32_t *ret_ms)
{
    static const unit_t UNITS[] = {{"", 1e3},     {"ms", 1},      {"s", 1e3}, {"m", 60e3},
                                   {"h", 3600e3}, {"d", 86400e3}, {NULL, 0}};
    double ms;
    if (!parse_number(text, UNITS, 2147483647.0, &ms)) return false;
    *ret_ms = ms > 0 && ms < 1 ? 1 : (uint32_t)llround(ms);
    return true;
}

bool units_parse_size(const char *text, uint64_t *ret_bytes)
{
    static const unit_t UNITS[] = {{"", 1},
                                   {"k", 1e3},
                                   {"M", 1e6},
                                   {"G", 1e9},
                                   {"Ki", 1024.0},
                                   {"Mi", 1048576.0},
                                   {"Gi", 1073741824.0},
                                   {"B", 1},
                                   {"kB", 1e3},
                                   {"MB", 1e6},
                                   {"GB", 1e9},
                                   {"KiB", 1024.0},
                                   {"MiB", 1048576.0},
                                   {"GiB", 1073741824.0},
                                   {"kbit", 1e3 / 8},
                                   {"Mbit", 1e6 / 8},
                                   {"Gbit", 1e9 / 8},
                                   {NULL, 0}};
    char size[40];
    double bytes;
    size_t n = strlen(text);
    if (n >= sizeof size) return false;
    memcpy(size, text, n + 1);
    if (n > 2 && !strcmp(size + n - 2, "/s")) size[n - 2] = 0; /* most sizes are of a second */
    if (!parse_number(size, UNITS, 9007199254740991.0, &bytes)) return false;
    *ret_bytes = (uint64_t)llround(bytes);
    return true;
}

bool units_parse_quorum(const char *text, heddle_quorum_t *ret_quorum)
{
    if (!strcmp(text, "all")) {
        *ret_quorum = (heddle_quorum_t){HEDDLE_QUORUM_ALL, 0};
        return true;
    }
    if (!strcmp(text, "none")) {
        *ret_quorum = (heddle_quorum_t){HEDDLE_QUORUM_NONE, 0};
        return true;
    }
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 7) return false;
    uint32_t n = (uint32_t)strtoul(text, NULL, 10);
    if (text[digits] == 0 && n > 0) {
        *ret_quorum = (heddle_quorum_t){HEDDLE_QUORUM_COUNT, n};
        return true;
    }
    if (!strcmp(text + digits, "%") && n > 0 && n <= 100) {
        *ret_quorum = (heddle_quorum_t){HEDDLE_QUORUM_PERCENT, n};
        return true;
    }
    return false;
}

uint32_t units_quorum_need(heddle_quorum_t quorum, uint32_t eligible, uint32_t min)
{
    uint32_t need = quorum.kind == HEDDLE_QUORUM_COUNT ? quorum.n
                    : quorum.kind == HEDDLE_QUORUM_PERCENT
                        ? (uint32_t)(((uint64_t)eligible * quorum.n + 99) / 100)
                    : quorum.kind == HEDDLE_QUORUM_NONE ? 0
                                                        : eligible;
    return need > min ? need : min;
}

void units_bytes_text(uint64_t bytes, char ret_text[16])
{
    static const char *const UNITS[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    double v = (double)bytes;
    int u = 0;
    while (v >= 999.95 && u < 5) {
        v /= 1000;
        u++;
    }
    text_printf(ret_text, 16, u ? "%.1f %s" : "%.0f %s", v, UNITS[u]);
}

void units_ms_text(double ms, char ret_text[16])
{
    if (ms < 0) text_printf(ret_text, 16, "-");
    else if (ms < 999.5) text_printf(ret_text, 16, ms < 99.95 ? "%.1f ms" : "%.0f ms", ms);
    else if (ms < 60000) text_printf(ret_text, 16, "%.1f s", ms / 1000);
    else
        text_printf(ret_text, 16, "%u m %u s", (unsigned)(ms / 60000) % 1000000u, (unsigned)(ms / 1000) % 60);
}
