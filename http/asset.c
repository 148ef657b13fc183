/* SPDX-License-Identifier: Apache-2.0 */
#include "http/asset.h"

#include "http_page_icon.h"
#include "http_page_page.h"
#include "http_page_script.h"
#include "http_page_style.h"

#include <string.h>

static const asset_t ASSETS[] = {
    {"/", "text/html; charset=utf-8", HTTP_PAGE, sizeof HTTP_PAGE - 1},
    {"/page/style.css", "text/css; charset=utf-8", HTTP_STYLE, sizeof HTTP_STYLE - 1},
    {"/page/script.js", "text/javascript; charset=utf-8", HTTP_SCRIPT, sizeof HTTP_SCRIPT - 1},
    {"/page/icon.svg", "image/svg+xml", HTTP_ICON, sizeof HTTP_ICON - 1},
};

const asset_t *asset_find(const char *path, size_t bytes)
{
    for (size_t i = 0; i < sizeof ASSETS / sizeof *ASSETS; i++)
        if (strlen(ASSETS[i].path) == bytes && !memcmp(ASSETS[i].path, path, bytes)) return &ASSETS[i];
    return NULL;
}
