/* SPDX-License-Identifier: Apache-2.0 */
/* Finding and loading the UCX plugin.  UCX is not linked, so that programs which move no bulk data run
 * without it. */
#include "transfer/transfer.h"

#include "core/errors.h"
#include "transfer/device.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PLUGIN "transfer_ucx.so"

/* Read by UCX while it is being loaded, and by nothing after.  (Everything else: transfer/ucx.c.) */
static const struct {
    const char *name, *value;
} LOAD_SETTINGS[] = {
    {"UCX_HANDLE_ERRORS", "none"}, /* no SEGV, BUS, ILL, FPE handlers in the host process */
    {"UCX_DEBUG_SIGNO", "0"},      /* nor SIGHUP */
    {"UCX_MEM_EVENTS", "n"},       /* mmap and munmap stay as they are: TCP registers no memory */
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
    {"UCX_LOG_LEVEL", "fatal"}, /* a peer that dies is an event, not a line on stderr */
};
#define LOAD_SETTING_COUNT (sizeof LOAD_SETTINGS / sizeof *LOAD_SETTINGS)

/* Those of UCX in a directory that the dynamic linker does not know, each after those it needs: the
 * plugin's references are then met by what is loaded already.  What is not there is left to the linker. */
static void open_ucx(const char *dir)
{
    static const char *const LIBRARIES[] = {"libucm.so.0", "libucs.so.0", "libuct.so.0", "libucp.so.0"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof LIBRARIES / sizeof *LIBRARIES; i++)
        if (snprintf(path, sizeof path, "%s/%s", dir, LIBRARIES[i]) < (int)sizeof path)
            dlopen(path, RTLD_NOW | RTLD_LOCAL); /* never closed, as the plugin */
}

/* The directory of the file that `path` names, with "/" and `below` appended. False: it has no directory,
 * or is too long. */
static bool beside(const char *path, const char *below, char ret_dir[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    if (!slash) return false;
    int n = snprintf(ret_dir, PATH_MAX, "%.*s/%s", (int)(slash - path), path, below);
    return n > 0 && n < PATH_MAX;
}

/* Where the plugin may be, in order; false when `i` is past the last or that place has no name. */
static bool candidate(int i, char ret_dir[PATH_MAX])
{
    static const char marker;
    char program[PATH_MAX];
    Dl_info self;
    ssize_t n;
    switch (i) {
    case 0: {
        const char *given = getenv("HEDDLE_PLUGIN_DIR");
        return given && *given && snprintf(ret_dir, PATH_MAX, "%s", given) < PATH_MAX;
    }
    case 1: /* as installed: bin/heddle -> lib/<machine>/heddle */
    case 2: /* as built: bin/heddle -> lib/heddle */
        n = readlink("/proc/self/exe", program, sizeof program - 1);
        if (n <= 0) return false;
        program[n] = 0;
        return beside(program, i == 1 ? HEDDLE_BIN_TO_PLUGIN : "../lib/heddle", ret_dir);
    case 3: /* lib/libheddle.so -> lib/heddle */
        return dladdr(&marker, &self) && self.dli_fname && beside(self.dli_fname, "heddle", ret_dir);
    case 4: return snprintf(ret_dir, PATH_MAX, "%s", HEDDLE_INSTALLED_PLUGIN_DIR) < PATH_MAX;
    default: return false;
    }
}
#define CANDIDATES 5

/* A directory that the user named is the only one searched: another plugin would hide the mistake. */
static bool find_plugin(char ret_path[PATH_MAX + sizeof PLUGIN + 1])
{
    char dir[PATH_MAX];
    for (int i = 0; i < CANDIDATES; i++) {
        if (!candidate(i, dir)) continue;
        snprintf(ret_path, PATH_MAX + sizeof PLUGIN + 1, "%s/" PLUGIN, dir);
        if (access(ret_path, R_OK) == 0) return true;
        if (i == 0) return false; /* named by the user: no other will do */
    }
    return false;
}

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static const transfer_ops_t *loaded;
static transfer_place_t place;

/* UCX reads some variables while it is loaded.  They are set for that moment only, so that the application
 * and its children do not inherit them; one that the user has set stays as it is.  The caller holds the lock:
 * two that overlap would each take away what the other has set. */
static int load(const char *ucx_dir, heddle_error_t *error)
{
    char path[PATH_MAX + sizeof PLUGIN + 1];
    if (!find_plugin(path)) {
        const char *given = getenv("HEDDLE_PLUGIN_DIR");
        if (given && !*given) given = NULL;
        error_fail(error, HEDDLE_ERR_INTERNAL, "the data plane's plugin " PLUGIN " was not found%s%s",
                   given ? " in " : "", given ? given : "");
        error_expected(error, "%s/" PLUGIN, given ? given : HEDDLE_INSTALLED_PLUGIN_DIR);
        error_hint(error, "install Heddle again, or name the directory that has it: HEDDLE_PLUGIN_DIR");
        return HEDDLE_ERR_INTERNAL;
    }
    uint32_t set = 0;
    for (size_t i = 0; i < LOAD_SETTING_COUNT; i++)
        if (!getenv(LOAD_SETTINGS[i].name) && setenv(LOAD_SETTINGS[i].name, LOAD_SETTINGS[i].value, 0) == 0)
            set |= 1u << i;
    if (ucx_dir) open_ucx(ucx_dir);
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < LOAD_SETTING_COUNT; i++)
        if (set & 1u << i) unsetenv(LOAD_SETTINGS[i].name);
    if (!plugin) {
        const char *why = dlerror();
        bool no_ucx =
            why && (strstr(why, "libucp.so") || strstr(why, "libucs.so") || strstr(why, "libuct.so"));
        error_fail(error, HEDDLE_ERR_INTERNAL,
                   no_ucx ? "UCX is not installed: %s" : "the data plane's plugin cannot be loaded: %s",
                   why ? why : path);
        if (no_ucx)
            error_hint(error, "Debian and Ubuntu: sudo apt install libucx0; in a Python environment: "
                              "pip install libucx-cu12");
        return HEDDLE_ERR_INTERNAL;
    }
    loaded = dlsym(plugin, "transfer_ops"); /* never unloaded: UCX leaves a thread behind */
    if (loaded) {
        Dl_info at;
        void *ucp = dlsym(plugin, "ucp_get_version");
        if (dladdr(loaded, &at)) snprintf(place.plugin, sizeof place.plugin, "%s", at.dli_fname);
        if (ucp && dladdr(ucp, &at)) snprintf(place.ucx, sizeof place.ucx, "%s", at.dli_fname);
    }
    if (loaded) return HEDDLE_OK;
    return error_fail(error, HEDDLE_ERR_INTERNAL, "%s is not a plugin of this version", path);
}

/* The interface is checked first: its error says more than that of UCX. */
int transfer_ucx_load(const char *device, const transfer_ops_t **ret_ops, heddle_error_t *error)
{
    int rc = device_check(device, DEVICE_ANY, error);
    if (rc != HEDDLE_OK) return rc;
    pthread_mutex_lock(&load_lock);
    if (!loaded) rc = load(NULL, error);
    if (rc == HEDDLE_OK) *ret_ops = loaded;
    pthread_mutex_unlock(&load_lock);
    return rc;
}

int transfer_ucx_load_from(const char *ucx_dir, const transfer_ops_t **ret_ops, transfer_place_t *ret_place,
                           heddle_error_t *error)
{
    pthread_mutex_lock(&load_lock);
    int rc = loaded ? HEDDLE_OK : load(ucx_dir, error);
    if (rc == HEDDLE_OK) {
        *ret_ops = loaded;
        *ret_place = place;
    }
    pthread_mutex_unlock(&load_lock);
    return rc;
}
