/* SPDX-License-Identifier: Apache-2.0 */
/* core/listing.h: a list of names in a text for people: "w1, w2 and 3 others".
 *
 *   listing_t names = {.text = text, .size = sizeof text, .most = 4};
 *   for (...) listing_add(&names, "%s", name);
 *   use(listing_text(&names));
 *
 * The text is the caller's, and is filled from its beginning.  An item that does not fit whole, and each item
 * after the first `most`, is counted and not shown.  Nothing blocks; one thread at a time per list. */
#ifndef CORE_LISTING_H
#define CORE_LISTING_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *text;
    size_t size;         /* of the text: with room for "and N others", 24 bytes */
    uint32_t most;       /* items that are shown; 0: as many as fit */
    const char *between; /* two items; NULL: ", " */
    /* kept by the functions below */
    size_t used;
    uint32_t shown, others;
} listing_t;

void listing_add(listing_t *list, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The text, with how many others there are; "" for none at all.  To be called last, and once. */
const char *listing_text(listing_t *list);

#endif
