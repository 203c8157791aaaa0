/* A CUDA driver for tests: FAKE_CUDA_INIT is what cuInit returns, FAKE_CUDA_DEVICES how many devices there are. */
#include <stdlib.h>

static int initialised;

static int setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int cuInit(unsigned flags) {
    const int result = flags ? 1 : setting("FAKE_CUDA_INIT", 0);
    initialised = result == 0;
    return result;
}

int cuDeviceGetCount(int *count) {
    if (!initialised) return 3;
    *count = setting("FAKE_CUDA_DEVICES", 1);
    return 0;
}

int fake_cuda_works(void) { return initialised && setting("FAKE_CUDA_DEVICES", 1) > 0; }
