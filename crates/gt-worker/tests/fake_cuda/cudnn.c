// cuDNN without a GPU, for tests: a graph has one plan, which does nothing but look at what it is given.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
enum { ENGINE = 2, CONFIG = 3, HEURISTICS = 4, PLAN = 5, RESHAPE = 31, GRAPH = 15, PACK = 16, TENSOR = 17 };
enum { MOST = 64 };

typedef struct Desc {
    int kind, finished, uses;
    // A tensor's number; what an operation, a graph or a plan is made of; what a pack gives.
    int64_t id, ids[MOST];
    int outside, count;
    struct Desc *parts[MOST];
    void *pointers[MOST];
    char read;
} Desc;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t live, executed, planned, read_again;
static char said[256];

uint64_t fake_cudnn_count(int what) {
    return what == 0 ? live : what == 1 ? executed : what == 2 ? planned : read_again;
}

static R fail(const char *why) {
    snprintf(said, sizeof said, "%s", why);
    return 2000;
}

size_t cudnnGetVersion(void) { return 91900; }
void cudnnGetLastErrorString(char *to, size_t n) { snprintf(to, n, "%s", said); }
R cudnnCreate(void **h) { *h = (void *)1; return 0; }
R cudnnDestroy(void *h) { return 0; }
R cudnnSetStream(void *h, void *s) { return s ? 0 : fail("the default stream"); }

// Descriptors hold on to what they are made of, as the library's do.
static void drop(Desc *d) {
    if (--d->uses > 0) return;
    for (int i = 0; i < d->count; i++)
        if (d->parts[i]) drop(d->parts[i]);
    live--;
    free(d);
}

static Desc *make(int kind) {
    Desc *d = calloc(1, sizeof(Desc));
    d->kind = kind;
    d->uses = 1;
    live++;
    return d;
}

R cudnnBackendCreateDescriptor(int kind, Desc **d) {
    pthread_mutex_lock(&lock);
    *d = make(kind);
    pthread_mutex_unlock(&lock);
    return 0;
}

R cudnnBackendDestroyDescriptor(Desc *d) {
    pthread_mutex_lock(&lock);
    drop(d);
    pthread_mutex_unlock(&lock);
    return 0;
}

R cudnnBackendFinalize(Desc *d) {
    if (d->finished) return fail("finished twice");
    d->finished = 1;
    if (d->kind == PLAN) {
        if (d->read) read_again++;
        else planned++;
    }
    return 0;
}

R cudnnBackendSetAttribute(Desc *d, int name, int type, int64_t n, const void *values) {
    if (d->finished) return fail("changed after it was finished");
    if (type == 15) {
        pthread_mutex_lock(&lock);
        for (int i = 0; i < n; i++) {
            Desc *part = ((Desc **)values)[i];
            if (!part->finished) return fail("made of something unfinished");
            part->uses++;
            if (d->count == MOST) return fail("too many parts");
            d->parts[d->count++] = part;
        }
        pthread_mutex_unlock(&lock);
    }
    if (d->kind == TENSOR && name == 906) d->id = *(int64_t *)values;
    if (d->kind == TENSOR && name == 907) d->outside = !*(char *)values;
    if (d->kind == PLAN && name == 405) d->read = 1;
    if (d->kind == PACK && name == 1000) memcpy(d->ids, values, n * sizeof(int64_t)), d->id = n;
    if (d->kind == PACK && name == 1001) memcpy(d->pointers, values, n * sizeof(void *));
    return 0;
}

static int has(Desc *d, int kind) {
    if (d->kind == kind) return 1;
    for (int i = 0; i < d->count; i++)
        if (d->parts[i] && has(d->parts[i], kind)) return 1;
    return 0;
}

R cudnnBackendGetAttribute(Desc *d, int name, int type, int64_t room, int64_t *n, void *to) {
    if (!d->finished && d->kind != CONFIG) return fail("read before it was finished");
    *n = 1;
    if (d->kind == HEURISTICS && name == 202) {
        Desc *config = *(Desc **)to;
        pthread_mutex_lock(&lock);
        config->parts[config->count++] = d->parts[0];
        d->parts[0]->uses++;
        config->finished = 1;
        pthread_mutex_unlock(&lock);
    } else if (d->kind == CONFIG && name == 300) {
        (*(Desc **)to)->finished = 1;
    } else if (d->kind == ENGINE && name == 1303) {
        *n = 0;
    } else if (d->kind == PLAN && name == 402) {
        *(int64_t *)to = has(d, RESHAPE) ? 3 << 20 : 256;
    } else if (d->kind == PLAN && name == 405) {
        *n = 9;
        memcpy(to, "fake plan", room < 9 ? room : 9);
    } else if (room > 0) {
        *(int64_t *)to = 7;
    }
    return 0;
}

// True if a pack gives every tensor of a graph that lies outside.
static int given(Desc *d, Desc *pack) {
    if (d->kind == TENSOR && d->outside) {
        for (int64_t i = 0; i < pack->id; i++)
            if (pack->ids[i] == d->id) return pack->pointers[i] != 0;
        return 0;
    }
    for (int i = 0; i < d->count; i++)
        if (d->parts[i] && !given(d->parts[i], pack)) return 0;
    return 1;
}

R cudnnBackendExecute(void *h, Desc *plan, Desc *pack) {
    if (!plan->finished || !pack->finished) return fail("executed before it was finished");
    if (!given(plan, pack)) return fail("a tensor without an address");
    executed++;
    return 0;
}
