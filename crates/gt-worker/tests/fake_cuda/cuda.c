// A CUDA driver without a GPU, for tests: memory is the host's, kernels do nothing, and streams are as lazy as they may
// be. Work runs only when somebody waits for it, so that whoever forgets to wait reads what was there before.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int R;
enum { OK = 0, OUT_OF_MEMORY = 2, NOT_FOUND = 500, NOT_READY = 600 };
enum { COPY, SET, FREE, WAIT, KERNEL, GRAPH, CALL };

typedef struct Op {
    int kind;
    void *to, *from;
    size_t bytes;
    struct Stream *other;
    uint64_t at;
    struct Graph *graph;
    // Where a graph that runs has come to.
    struct Op *now;
    int begun;
    // Something that takes its time: false while it is not done.
    int (*call)(void *);
    struct Op *next;
} Op;
typedef struct Graph {
    Op *first, *last;
    size_t count;
    int refs;
} Graph;
typedef struct Stream {
    Op *first, *last;
    uint64_t put, done;
    Graph *capturing;
    Op *node;
} Stream;
typedef struct Event {
    Stream *stream;
    uint64_t at;
} Event;
typedef struct Head {
    size_t bytes;
} Head;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t limit = (size_t)3 << 30, live;
static uint64_t kernels, launches, captures, sets;
#define LOCK pthread_mutex_lock(&lock)
#define UNLOCK pthread_mutex_unlock(&lock)

// What a test may ask: bytes in use, kernels run, graphs launched, captures, arguments changed.
uint64_t fake_count(int what) {
    uint64_t all[] = {live, kernels, launches, captures, sets};
    return all[what];
}

// After this every wait ends in an illegal address, as on a device that is lost.
static int broken;
void fake_break(void) { broken = 1; }

static void run(Stream *s, uint64_t until);
// False if it has to be tried again.
static int act(Op *op) {
    switch (op->kind) {
    case COPY: memcpy(op->to, op->from, op->bytes); break;
    case SET: memset(op->to, 0, op->bytes); break;
    case FREE: {
        // What is freed is spoilt, and stays: whoever uses it reads nonsense instead of crashing.
        Head *head = (Head *)op->to - 1;
        memset(op->to, 0xdd, head->bytes);
        break;
    }
    case WAIT: run(op->other, op->at); return op->other->done >= op->at;
    case KERNEL: kernels++; break;
    case CALL: return op->call(op->from);
    case GRAPH:
        if (!op->begun) op->now = op->graph->first;
        op->begun = 1;
        for (; op->now; op->now = op->now->next) if (!act(op->now)) return 0;
        break;
    }
    return 1;
}
static void run(Stream *s, uint64_t until) {
    while (s->done < until && s->first) {
        Op *op = s->first;
        if (!act(op)) return;
        s->first = op->next;
        if (!s->first) s->last = 0;
        s->done++;
        free(op);
    }
}
// Runs a stream up to a point, however long that takes.
static void run_all(Stream *s, uint64_t until) {
    for (;;) {
        LOCK;
        if (until > s->put) until = s->put;
        run(s, until);
        int done = s->done >= until;
        UNLOCK;
        if (done) return;
        usleep(50);
    }
}
static R put(Stream *s, Op op) {
    Op *own = malloc(sizeof op);
    *own = op;
    own->next = 0;
    LOCK;
    if (s->capturing) {
        Graph *g = s->capturing;
        if (g->last) g->last->next = own; else g->first = own;
        g->last = own;
        g->count++;
        s->node = own;
    } else {
        if (s->last) s->last->next = own; else s->first = own;
        s->last = own;
        s->put++;
    }
    UNLOCK;
    return OK;
}

// Puts something on a stream that may have to wait for others: it is called until it says that it is done.
void fake_put(Stream *s, int (*call)(void *), void *with) { put(s, (Op){.kind = CALL, .call = call, .from = with}); }

int fake_captures(Stream *s) { return s->capturing != 0; }

R cuInit(unsigned f) { return OK; }
// Asked for by NVRTC, which does without.
R cuGetExportTable(void **t, const void *id) { *t = 0; return 801; }
R cuDriverGetVersion(int *v) { *v = 13000; return OK; }
R cuGetErrorName(R r, const char **s) { *s = r == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR"; return OK; }
R cuGetErrorString(R r, const char **s) { *s = "an error of the fake driver"; return OK; }
R cuDeviceGetCount(int *n) { *n = 1; return OK; }
R cuDeviceGet(int *d, int n) { *d = n; return OK; }
R cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "Fake GPU"); return OK; }
R cuDeviceTotalMem_v2(size_t *n, int d) { *n = limit; return OK; }
R cuDeviceGetAttribute(int *v, int what, int d) { *v = what == 75 ? 9 : what == 76 ? 0 : 132; return OK; }
// Whoever asks has another device, unless a test wants one for all.
R cuDeviceGetUuid_v2(char *to, int d) {
    static char last;
    memset(to, 0, 16);
    LOCK;
    to[0] = getenv("FAKE_ONE_GPU") ? 1 : ++last;
    UNLOCK;
    return OK;
}
R cuDeviceGetDefaultMemPool(void **p, int d) { *p = (void *)1; return OK; }
R cuMemPoolSetAttribute(void *p, int a, void *v) { return OK; }
R cuMemPoolTrimTo(void *p, size_t n) { return OK; }
R cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)16; return OK; }
static __thread void *current;
R cuCtxSetCurrent(void *c) { current = c; return OK; }
R cuCtxGetCurrent(void **c) { *c = current; return OK; }
static Stream *all[4096];
static int streams;
R cuCtxSynchronize(void) {
    for (int i = 0; i < streams; i++) run_all(all[i], UINT64_MAX);
    return OK;
}
R cuMemGetInfo_v2(size_t *f, size_t *t) { *f = limit - live; *t = limit; return OK; }
R cuStreamCreate(Stream **s, unsigned f) {
    *s = calloc(1, sizeof **s);
    LOCK;
    all[streams++] = *s;
    UNLOCK;
    return OK;
}
R cuStreamDestroy_v2(Stream *s) { return OK; }
R cuStreamSynchronize(Stream *s) { run_all(s, UINT64_MAX); return OK; }
R cuStreamWaitEvent(Stream *s, Event *e, unsigned f) { return put(s, (Op){.kind = WAIT, .other = e->stream, .at = e->at}); }

static void *make(size_t n) {
    Head *head = aligned_alloc(256, (n + 256 + 255) / 256 * 256);
    head = (Head *)((char *)head + 256) - 1;
    head->bytes = n;
    memset(head + 1, 0xab, n);
    return head + 1;
}
static R take(uint64_t *p, size_t n) {
    LOCK;
    if (live + n > limit) { UNLOCK; return OUT_OF_MEMORY; }
    live += n;
    UNLOCK;
    *p = (uint64_t)make(n);
    return OK;
}
R cuMemAllocAsync(uint64_t *p, size_t n, Stream *s) { return s->capturing ? 900 : take(p, n); }
R cuMemAlloc_v2(uint64_t *p, size_t n) { return take(p, n); }
R cuMemFreeAsync(uint64_t p, Stream *s) {
    LOCK;
    live -= ((Head *)p - 1)->bytes;
    UNLOCK;
    return put(s, (Op){.kind = FREE, .to = (void *)p});
}
R cuMemFree_v2(uint64_t p) { cuCtxSynchronize(); LOCK; live -= ((Head *)p - 1)->bytes; UNLOCK; return OK; }
// Processes are backends of one here, so a handle is the address itself.
R cuIpcGetMemHandle(char *handle, uint64_t p) { memset(handle, 0, 64); memcpy(handle, &p, 8); return OK; }
typedef struct { char of[64]; } Handle;
R cuIpcOpenMemHandle_v2(uint64_t *p, Handle h, unsigned f) { memcpy(p, h.of, 8); return *p ? OK : 1; }
R cuIpcCloseMemHandle(uint64_t p) { return OK; }
R cuMemHostAlloc(void **p, size_t n, unsigned f) { *p = malloc(n); return OK; }
R cuMemFreeHost(void *p) { return OK; }
R cuMemcpyHtoDAsync_v2(uint64_t t, const void *f, size_t n, Stream *s) { return put(s, (Op){.kind = COPY, .to = (void *)t, .from = (void *)f, .bytes = n}); }
R cuMemcpyDtoHAsync_v2(void *t, uint64_t f, size_t n, Stream *s) { return put(s, (Op){.kind = COPY, .to = t, .from = (void *)f, .bytes = n}); }
R cuMemcpyDtoDAsync_v2(uint64_t t, uint64_t f, size_t n, Stream *s) { return put(s, (Op){.kind = COPY, .to = (void *)t, .from = (void *)f, .bytes = n}); }
typedef struct { size_t x, y; int kind; const void *host; uint64_t device; void *array; size_t pitch; } Side;
typedef struct { Side from, to; size_t width, height; } Rows;
R cuMemcpy2DAsync_v2(const Rows *r, Stream *s) {
    for (size_t i = 0; i < r->height; i++) {
        R done = cuMemcpyDtoDAsync_v2(r->to.device + i * r->to.pitch, r->from.device + i * r->from.pitch, r->width, s);
        if (done) return done;
    }
    return OK;
}
R cuMemcpyPeerAsync(uint64_t t, void *to, uint64_t f, void *from, size_t n, Stream *s) { return cuMemcpyDtoDAsync_v2(t, f, n, s); }
R cuMemsetD8Async(uint64_t t, unsigned char c, size_t n, Stream *s) { return put(s, (Op){.kind = SET, .to = (void *)t, .bytes = n}); }

R cuEventCreate(Event **e, unsigned f) { *e = calloc(1, sizeof **e); return OK; }
R cuEventDestroy_v2(Event *e) { return OK; }
R cuEventRecord(Event *e, Stream *s) { LOCK; e->stream = s; e->at = s->put; UNLOCK; return OK; }
// Whoever asks again and again gets there, too.
R cuEventQuery(Event *e) {
    static int asked;
    LOCK;
    int late = e->stream && e->stream->done < e->at;
    if (late && ++asked % 16 == 0) run(e->stream, e->at);
    UNLOCK;
    return late ? NOT_READY : OK;
}
R cuEventSynchronize(Event *e) { if (broken) return 700; if (e->stream) run_all(e->stream, e->at); return OK; }
R cuEventElapsedTime_v2(float *t, Event *a, Event *b) { *t = 1; return OK; }

R cuModuleLoadData(void **m, const void *image) { *m = (void *)32; return OK; }
R cuModuleUnload(void *m) { return OK; }
R cuModuleGetFunction(void **f, void *m, const char *name) { *f = (void *)48; return OK; }
R cuFuncLoad(void *f) { return OK; }
R cuFuncSetAttribute(void *f, int a, int v) { return OK; }
R cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                 Stream *s, void **args, void **extra) {
    if (!gx || !gy || !gz || !bx || bx > 1024 || gx > 2147483647u || gy > 65535 || gz > 65535 || shared > 232448) return 1;
    return put(s, (Op){.kind = KERNEL});
}

R cuStreamBeginCapture_v2(Stream *s, int mode) { s->capturing = calloc(1, sizeof(Graph)); s->node = 0; captures++; return OK; }
R cuStreamEndCapture(Stream *s, Graph **g) { *g = s->capturing; s->capturing = 0; return OK; }
R cuStreamGetCaptureInfo_v3(Stream *s, int *status, uint64_t *id, Graph **g, const void ***nodes, const void **edges, size_t *n) {
    *status = 1;
    *nodes = (const void **)&s->node;
    *n = s->node != 0;
    return OK;
}
R cuGraphInstantiateWithFlags(Graph **x, Graph *g, unsigned long long f) { *x = g; return OK; }
R cuGraphExecDestroy(Graph *x) { return OK; }
R cuGraphDestroy(Graph *g) { return OK; }
R cuGraphLaunch(Graph *x, Stream *s) { launches++; return put(s, (Op){.kind = GRAPH, .graph = x}); }
R cuGraphExecKernelNodeSetParams_v2(Graph *x, void *node, const void *params) { sets++; return OK; }
