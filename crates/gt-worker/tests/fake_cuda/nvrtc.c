// NVRTC without a compiler, for tests: every source compiles, to nothing.
#include <string.h>

typedef int R;
R nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 0; return 0; }
R nvrtcCreateProgram(void **p, const char *s, const char *n, int c, const char *const *h, const char *const *i) { *p = (void *)1; return 0; }
R nvrtcCompileProgram(void *p, int n, const char *const *o) { return 0; }
R nvrtcDestroyProgram(void **p) { return 0; }
R nvrtcGetCUBINSize(void *p, unsigned long *n) { *n = 4; return 0; }
R nvrtcGetCUBIN(void *p, char *to) { memcpy(to, "none", 4); return 0; }
R nvrtcGetProgramLogSize(void *p, unsigned long *n) { *n = 1; return 0; }
R nvrtcGetProgramLog(void *p, char *to) { *to = 0; return 0; }
