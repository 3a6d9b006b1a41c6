// NCCL without GPUs, for tests: ranks are threads of one process and meet in host memory when their streams come to it.
// Whatever ranks do not agree on is an error, also whether a call is captured, and where one is replayed, which capture.
// A rank that was cut off waits for nobody.
#include <pthread.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
enum { OK = 0, INVALID = 4, CUT = 6 };
enum { REDUCE, SCATTER, GATHER, BROADCAST, SEND, RECV, MOST = 4096, RANKS = 16 };

extern void fake_put(void *stream, int (*call)(void *), void *with);
extern int fake_captures(void *stream);

typedef struct Call {
    int what, dtype, op, peer;
    char *from, *to;
    size_t count;
    void *stream;
    // Which of the rank's captured calls it is; 0 outside graphs.
    int captured;
} Call;
// A piece that was sent and not received yet.
typedef struct Mail {
    int dtype, captured;
    size_t count;
    char *bytes;
    struct Mail *next;
} Mail;
typedef struct Group {
    char id[128];
    Mail *mail[RANKS][RANKS];
    int n, here, cut[RANKS];
    uint64_t round;
    Call *calls[RANKS];
    int counts[RANKS], bad;
    struct Group *next;
} Group;
typedef struct Comm {
    Group *group;
    int rank, captured;
} Comm;
// Calls that were made together. Collectives come first and go through two meetings: all have shown what they have, all
// have taken it. Pieces for one rank lie in its mail.
typedef struct Work {
    Comm *comm;
    int count, together, state;
    uint64_t until;
    char **outs;
    size_t *bytes;
    Call calls[];
} Work;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Group *groups;
static uint64_t ids, inits, aborts, called;
static __thread Call open_calls[MOST];
static __thread int open_count, depth;
static __thread Comm *open_comm;

// What a test may ask: groups joined, ranks cut off, calls made.
uint64_t fake_nccl_count(int what) {
    uint64_t all[] = {inits, aborts, called};
    return all[what];
}

R ncclGetVersion(int *v) { *v = 22803; return OK; }
const char *ncclGetErrorString(R r) { return r == CUT ? "remote process exited or there was a network error" : "invalid argument"; }
R ncclGetUniqueId(char *id) {
    memset(id, 0, 128);
    pthread_mutex_lock(&lock);
    snprintf(id, 128, "fake %llu", (unsigned long long)++ids);
    pthread_mutex_unlock(&lock);
    return OK;
}

// Waits for all ranks; false for one that was cut off. Called with the lock.
static int meet(Group *g, int rank) {
    uint64_t round = g->round;
    if (++g->here == g->n) {
        g->here = 0;
        g->round++;
        pthread_cond_broadcast(&changed);
        return 1;
    }
    while (g->round == round && !g->cut[rank]) pthread_cond_wait(&changed, &lock);
    return g->round != round;
}

typedef struct { char of[128]; } Id;
R ncclCommInitRank(Comm **out, int n, Id id, int rank) {
    if (n > RANKS || rank >= n) return INVALID;
    pthread_mutex_lock(&lock);
    Group *g = groups;
    while (g && memcmp(g->id, id.of, 128)) g = g->next;
    if (!g) {
        g = calloc(1, sizeof *g);
        memcpy(g->id, id.of, 128);
        g->n = n;
        g->next = groups;
        groups = g;
    }
    Comm *c = calloc(1, sizeof *c);
    c->group = g;
    c->rank = rank;
    inits++;
    int all = meet(g, rank);
    pthread_mutex_unlock(&lock);
    *out = c;
    return all ? OK : CUT;
}
R ncclCommAbort(Comm *c) {
    pthread_mutex_lock(&lock);
    c->group->cut[c->rank] = 1;
    aborts++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return OK;
}
R ncclCommGetAsyncError(Comm *c, R *r) { *r = c->group->bad ? INVALID : OK; return OK; }

static size_t size_of(int dtype) { return (size_t[]){1, 1, 4, 4, 8, 8, 2, 4, 8, 2}[dtype]; }
#define JOIN(T)                                                                                                     \
    for (size_t i = 0; i < n; i++) {                                                                                \
        T a = ((T *)to)[i], b = ((T *)x)[i];                                                                        \
        ((T *)to)[i] = op == 0 ? a + b : op == 1 ? a * b : op == 2 ? (a > b ? a : b) : (a < b ? a : b);             \
    }
static void join(char *to, const char *x, size_t n, int dtype, int op) {
    switch (dtype) {
    case 0: JOIN(int8_t) break;
    case 1: JOIN(uint8_t) break;
    case 2: JOIN(int32_t) break;
    case 4: JOIN(int64_t) break;
    case 7: JOIN(float) break;
    case 8: JOIN(double) break;
    default: abort();
    }
}

// What rank `me` gets of its call i, in new memory.
static char *got(Group *g, int me, int i, size_t *bytes) {
    Call *c = &g->calls[me][i];
    size_t each = size_of(c->dtype);
    for (int r = 0; r < g->n; r++) {
        Call *o = i < g->counts[r] ? &g->calls[r][i] : 0;
        if (!o || o->what != c->what || o->count != c->count || o->dtype != c->dtype || o->op != c->op || o->peer != c->peer ||
            o->captured != c->captured) {
            g->bad = 1;
            return 0;
        }
    }
    *bytes = c->count * each * (c->what == GATHER ? g->n : 1);
    char *out = malloc(*bytes + 1);
    for (int r = 0; r < g->n; r++) {
        char *from = g->calls[r][i].from;
        if (c->what == BROADCAST && r == c->peer) memcpy(out, from, *bytes);
        if (c->what == GATHER) memcpy(out + r * c->count * each, from, c->count * each);
        if (c->what != REDUCE && c->what != SCATTER) continue;
        if (c->what == SCATTER) from += me * c->count * each;
        if (r == 0) memcpy(out, from, *bytes); else join(out, from, c->count, c->dtype, c->op);
    }
    return out;
}

// Comes to a meeting; it is over in the round that this gives.
static uint64_t come(Group *g) {
    uint64_t until = g->round + 1;
    if (++g->here == g->n) {
        g->here = 0;
        g->round++;
        pthread_cond_broadcast(&changed);
    }
    return until;
}

static void send_mail(Group *g, int me, Call *c) {
    Mail *m = calloc(1, sizeof *m), **last = &g->mail[me][c->peer];
    size_t bytes = c->count * size_of(c->dtype);
    *m = (Mail){c->dtype, c->captured, c->count, memcpy(malloc(bytes + 1), c->from, bytes), 0};
    while (*last) last = &(*last)->next;
    *last = m;
}
// False while the piece has not come.
static int take_mail(Group *g, int me, Call *c) {
    Mail **first = &g->mail[c->peer][me], *m = *first;
    if (!m) return 0;
    if (m->count != c->count || m->dtype != c->dtype || m->captured != c->captured) { g->bad = 1; return 1; }
    memcpy(c->to, m->bytes, m->count * size_of(m->dtype));
    *first = m->next;
    return 1;
}

// Goes on with calls; false if ranks are missing.
static int go_on(Work *w) {
    Group *g = w->comm->group;
    int me = w->comm->rank;
    if (g->cut[me] || g->bad) { w->state = 0; return 1; }
    if (w->state == 0) {
        for (int i = w->together; i < w->count; i++) if (w->calls[i].what == SEND) send_mail(g, me, &w->calls[i]);
        w->state = 4;
        if (w->together) {
            g->calls[me] = w->calls;
            g->counts[me] = w->together;
            w->until = come(g);
            w->state = 1;
        }
    }
    if (w->state == 1) {
        if (g->round < w->until) return 0;
        for (int i = 0; i < w->together; i++) w->outs[i] = got(g, me, i, &w->bytes[i]);
        w->until = come(g);
        w->state = 2;
    }
    if (w->state == 2) {
        if (g->round < w->until) return 0;
        for (int i = 0; i < w->together; i++)
            if (w->outs[i]) { memcpy(w->calls[i].to, w->outs[i], w->bytes[i]); free(w->outs[i]); }
        w->state = 4;
    }
    // From here on the state says which call is next.
    for (; w->state - 4 < w->count - w->together; w->state++) {
        Call *c = &w->calls[w->together + w->state - 4];
        if (c->what == RECV && !take_mail(g, me, c)) return 0;
    }
    w->state = 0;
    return 1;
}
static int go_on_locked(void *w) {
    pthread_mutex_lock(&lock);
    int done = go_on(w);
    pthread_mutex_unlock(&lock);
    return done;
}

static R run(Comm *c) {
    if (c->group->cut[c->rank]) return CUT;
    int captured = fake_captures(open_calls[0].stream) ? ++c->captured : 0;
    for (int i = 0; i < open_count; i++) open_calls[i].captured = captured;
    Work *w = calloc(1, sizeof *w + open_count * sizeof(Call));
    w->comm = c;
    w->count = open_count;
    w->outs = calloc(open_count, sizeof *w->outs);
    w->bytes = calloc(open_count, sizeof *w->bytes);
    memcpy(w->calls, open_calls, open_count * sizeof(Call));
    while (w->together < w->count && w->calls[w->together].what < SEND) w->together++;
    for (int i = w->together; i < w->count; i++) if (w->calls[i].what < SEND) return INVALID;
    called += open_count;
    fake_put(open_calls[0].stream, go_on_locked, w);
    return OK;
}
R ncclGroupStart(void) { if (!depth++) { open_count = 0; open_comm = 0; } return OK; }
R ncclGroupEnd(void) { return --depth == 0 && open_comm ? run(open_comm) : OK; }
static R add(Comm *c, Call call) {
    if (!depth || open_count == MOST || (open_comm && open_comm != c)) return INVALID;
    open_comm = c;
    open_calls[open_count++] = call;
    return OK;
}
R ncclAllReduce(char *f, char *t, size_t n, int d, int op, Comm *c, void *s) { return add(c, (Call){REDUCE, d, op, 0, f, t, n, s}); }
R ncclReduceScatter(char *f, char *t, size_t n, int d, int op, Comm *c, void *s) { return add(c, (Call){SCATTER, d, op, 0, f, t, n, s}); }
R ncclAllGather(char *f, char *t, size_t n, int d, Comm *c, void *s) { return add(c, (Call){GATHER, d, 0, 0, f, t, n, s}); }
R ncclBroadcast(char *f, char *t, size_t n, int d, int root, Comm *c, void *s) { return add(c, (Call){BROADCAST, d, 0, root, f, t, n, s}); }
R ncclSend(char *f, size_t n, int d, int peer, Comm *c, void *s) { return add(c, (Call){SEND, d, 0, peer, f, 0, n, s}); }
R ncclRecv(char *t, size_t n, int d, int peer, Comm *c, void *s) { return add(c, (Call){RECV, d, 0, peer, 0, t, n, s}); }
