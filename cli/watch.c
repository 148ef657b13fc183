/* SPDX-License-Identifier: Apache-2.0 */
/* --watch: the same request again and again, until a signal or a failure ends it.
 *
 * The first request must succeed, as of every command: a wrong address would otherwise wait for ever.  A
 * broker that is lost later is waited for; on a terminal the last answer stays, under a line that says since
 * when. */
#include "cli/cli.h"

#include "cli/frame.h"
#include "core/clock.h"
#include "core/errors.h"
#include "core/option_json.h"
#include "core/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    const void *args; /* begin with a common_t */
    const char *kind;
    render_t *render;
    uint32_t period_ms;
    bool is_terminal;
    bool has_asked;   /* an answer came */
    char away_at[25]; /* since when the broker does not answer; "": it does */
    char *drawn;      /* the last answer, as it was rendered; NULL: none */
} watch_t;

static const common_t *common_of(const watch_t *w) { return w->args; }

/* Of the terminal; where it does not say, as the first ones were. */
static struct winsize size_of_terminal(void)
{
    struct winsize size = {0};
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    if (!size.ws_row) size.ws_row = 24;
    if (!size.ws_col) size.ws_col = 80;
    return size;
}

/* What the renderer prints, which it does on stdout.  NULL: no memory; the caller frees it. */
static char *rendered(const watch_t *w, json_t *answer)
{
    fflush(stdout);
    table_fit(size_of_terminal().ws_col);
    int file = memfd_create("frame", MFD_CLOEXEC), terminal = dup(STDOUT_FILENO);
    char *text = NULL;
    if (file >= 0 && terminal >= 0 && dup2(file, STDOUT_FILENO) >= 0) {
        w->render(w->args, answer);
        fflush(stdout);
        dup2(terminal, STDOUT_FILENO);
        off_t bytes = lseek(file, 0, SEEK_END);
        text = bytes >= 0 ? calloc(1, (size_t)bytes + 1) : NULL;
        if (text && pread(file, text, (size_t)bytes, 0) != bytes) text[0] = 0;
    }
    if (file >= 0) close(file);
    if (terminal >= 0) close(terminal);
    table_fit(0);
    return text;
}

static void draw(const watch_t *w, const char *head)
{
    struct winsize size = size_of_terminal();
    buf_t out = {0};
    if (!w->has_asked) buf_add_text(&out, "\033[2J"); /* what the shell printed */
    frame_draw(head, w->drawn ? w->drawn : "", size.ws_row, size.ws_col, &out);
    fwrite(buf_text(&out), 1, out.bytes, stdout);
    fflush(stdout);
    buf_fini(&out);
}

static void show(watch_t *w, json_t *answer)
{
    char now[25], period[16], head[160];
    if (common_of(w)->output == OUTPUT_JSON) {
        cli_print_json(answer);
        return;
    }
    clock_text(clock_wall(clock_system()), now);
    units_ms_text((double)w->period_ms, period);
    snprintf(head, sizeof head, "%s  heddle %s, every %s", now, w->kind, period);
    cli_clean_texts(answer);
    if (w->is_terminal) {
        free(w->drawn);
        w->drawn = rendered(w, answer);
        draw(w, head);
        return;
    }
    printf("%s%s\n", w->has_asked ? "\n" : "", head);
    w->render(w->args, answer);
    fflush(stdout);
}

/* -1: it goes on. */
static int turn(watch_t *w, heddle_admin_t *admin, call_t *call)
{
    char *json = NULL;
    int rc = call(admin, w->args, &json);
    if (rc == HEDDLE_ERR_INTERRUPTED && cli_signal_exit()) return cli_signal_exit();
    if (rc == HEDDLE_ERR_UNAVAILABLE && w->has_asked) {
        /* Once for each time that the broker is lost; on a terminal again, since its size may be another
         * by now. */
        bool is_new = !w->away_at[0];
        if (is_new) clock_text(clock_wall(clock_system()), w->away_at);
        if (w->is_terminal && common_of(w)->output == OUTPUT_TABLE) {
            char head[400];
            snprintf(head, sizeof head, "%s  the broker at %.200s does not answer; waiting for it",
                     w->away_at, common_of(w)->broker);
            draw(w, head);
        } else if (is_new) cli_fail(common_of(w), w->kind, heddle_last_error());
        return -1;
    }
    if (rc) return cli_fail(common_of(w), w->kind, heddle_last_error());
    json_t *answer = json_loads(json, 0, NULL);
    heddle_free(json);
    option_json_words(answer);
    w->away_at[0] = 0;
    show(w, answer);
    w->has_asked = true;
    json_decref(answer);
    return ferror(stdout) ? 0 : -1;
}

int cli_watch(const void *args, uint32_t period_ms, const char *kind, call_t *call, render_t *render)
{
    if (!period_ms) return cli_ask(args, kind, call, render);
    const char *terminal = getenv("TERM");
    watch_t w = {.args = args,
                 .kind = kind,
                 .render = render,
                 .period_ms = period_ms,
                 .is_terminal = isatty(STDOUT_FILENO) && terminal && strcmp(terminal, "dumb") != 0};
    bool is_drawn = w.is_terminal && common_of(&w)->output == OUTPUT_TABLE;
    int end;
    heddle_admin_t *admin = cli_admin(args, kind, &end);
    if (!admin) return end;
    for (end = -1; end < 0;) {
        end = turn(&w, admin, call);
        if (end < 0) cli_pause(period_ms);
        if (end < 0 && cli_signal_exit()) end = cli_signal_exit();
    }
    /* The prompt comes below what was drawn. */
    if (is_drawn && w.has_asked) puts("");
    free(w.drawn);
    cli_admin_close(&admin);
    return end;
}
