// cuBLASLt without a GPU, for tests: every product has two algorithms, which do nothing.
#include <string.h>

typedef int R;
R cublasLtCreate(void **h) { *h = (void *)1; return 0; }
R cublasLtDestroy(void *h) { return 0; }
unsigned long cublasLtGetVersion(void) { return 130000; }
R cublasLtMatrixLayoutCreate(void **l, int t, unsigned long r, unsigned long c, long ld) { *l = (void *)1; return 0; }
R cublasLtMatrixLayoutDestroy(void *l) { return 0; }
R cublasLtMatrixLayoutSetAttribute(void *l, int a, const void *b, unsigned long n) { return 0; }
R cublasLtMatmulDescCreate(void **d, int c, int s) { *d = (void *)1; return 0; }
R cublasLtMatmulDescDestroy(void *d) { return 0; }
R cublasLtMatmulDescSetAttribute(void *d, int a, const void *b, unsigned long n) { return 0; }
R cublasLtMatmulPreferenceCreate(void **p) { *p = (void *)1; return 0; }
R cublasLtMatmulPreferenceDestroy(void *p) { return 0; }
R cublasLtMatmulPreferenceSetAttribute(void *p, int a, const void *b, unsigned long n) { return 0; }
R cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *e, void *p, int n, void *results, int *got) {
    *got = n < 2 ? n : 2;
    memset(results, 0, 96 * *got);
    return 0;
}
R cublasLtMatmulAlgoCheck(void *h, void *d, void *a, void *b, void *c, void *e, void *algo, void *result) {
    memset(result, 0, 96);
    return 0;
}
R cublasLtMatmulAlgoConfigGetAttribute(void *a, int what, void *to, unsigned long n, unsigned long *wrote) { memset(to, 0, n); return 0; }
R cublasLtMatmulAlgoConfigSetAttribute(void *a, int what, const void *from, unsigned long n) { return 0; }
R cublasLtMatmul(void *h, void *d, const void *al, const void *a, void *la, const void *b, void *lb, const void *be,
                 const void *c, void *lc, void *e, void *le, const void *algo, void *w, unsigned long n, void *s) {
    return 0;
}
