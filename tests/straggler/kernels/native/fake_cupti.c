/* A libcupti without a GPU: the first activity interface, driven by tests through fake_cupti.h.
 *
 * It does what makes the real one hard: it ends the process when it is called before a driver works or with a
 * subscriber that is gone, holds its lock while it calls the client, asks for buffers in the middle of a launch, keeps
 * buffers with unfinished kernels back, gives the only subscription to the first, and forgets everything in
 * cuptiFinalize.
 */
#define _GNU_SOURCE
#include "fake_cupti.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))
#define OK 0
#define NO_MORE 12
#define NOT_INITIALIZED 15
#define TAKEN 39
#define KERNEL_KIND 10
#define OTHER_KIND 1
#define LONGEST 248
#define MOST_BUFFERS 4096

typedef void (*request_t)(uint8_t **, size_t *, size_t *);
typedef void (*complete_t)(void *, uint32_t, uint8_t *, size_t, size_t);
typedef uint64_t (*clock_source_t)(void);
typedef void (*callback_t)(void *, uint32_t, uint32_t, const void *);

struct record {
    uint32_t kind, pad[3];
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3], memory[4];
    uint32_t correlation;
    int64_t grid_id;
    const char *name;
};
_Static_assert(offsetof(struct record, start) == 16 && offsetof(struct record, grid) == 52, "layout");
_Static_assert(offsetof(struct record, correlation) == 92 && offsetof(struct record, name) == 104, "layout");

struct buffer {
    uint8_t *bytes;
    size_t size, used;
    int running;
};

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static request_t request;
static complete_t complete;
static clock_source_t clock_source;
static callback_t subscriber;
static void *subscriber_data;
static int enabled, attached, domains, other_subscriber, driver_works;
static struct buffer full[MOST_BUFFERS], current;
static int waiting;
static size_t record_size = 208;
static uint64_t now, dropped, calls[CALLS], other_records;
static int error_of[CALLS], error_times[CALLS];
static void (*then_of[CALLS])(void);

static int enter(int call) {
    if (!driver_works) {
        void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        int (*works)(void) = driver ? (int (*)(void))dlsym(driver, "fake_cuda_works") : NULL;
        if (!works || !works()) {
            fprintf(stderr, "fake libcupti: called (%d) before the driver works\n", call);
            abort();
        }
        driver_works = 1;
    }
    pthread_mutex_lock(&lock);
    calls[call]++;
    if (error_times[call] > 0) {
        error_times[call]--;
        return error_of[call];
    }
    return OK;
}

static int leave(int result) {
    pthread_mutex_unlock(&lock);
    return result;
}

/* Leaves after a call that worked, and does what was to follow it. */
static int worked(int call) {
    void (*const then)(void) = then_of[call];
    then_of[call] = NULL;
    leave(OK);
    if (then) then();
    return OK;
}

static void deliver(struct buffer one) {
    if (one.bytes && complete) complete(NULL, 0, one.bytes, one.size, one.used);
}

static void retire_current(void) {
    if (current.bytes && waiting < MOST_BUFFERS) full[waiting++] = current;
    memset(&current, 0, sizeof current);
}

static void deliver_all(int forced) {
    retire_current();
    const int count = waiting;
    int kept = 0;
    for (int i = 0; i < count; i++) {
        const struct buffer one = full[i];
        if (one.running && !forced)
            full[kept++] = one;
        else
            deliver(one);
    }
    waiting = kept;
}

API int cuptiGetVersion(uint32_t *version) {
    const char *text = getenv("FAKE_CUPTI_VERSION");
    *version = text ? (uint32_t)atoi(text) : 130001;
    return OK;
}

API int cuptiGetResultString(int result, const char **text) {
    switch (result) {
        case NOT_INITIALIZED: *text = "CUPTI_ERROR_NOT_INITIALIZED"; return OK;
        case TAKEN: *text = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"; return OK;
        case 999: *text = "CUPTI_ERROR_UNKNOWN"; return OK;
    }
    return 1;
}

API int cuptiGetTimestamp(uint64_t *when) {
    *when = now;
    return OK;
}

API int cuptiActivityRegisterCallbacks(request_t on_request, complete_t on_complete) {
    const int error = enter(REGISTER);
    if (error) return leave(error);
    request = on_request;
    complete = on_complete;
    attached = 1;
    return leave(OK);
}

API int cuptiActivityRegisterTimestampCallback(clock_source_t source) {
    const int error = enter(CLOCK);
    if (error) return leave(error);
    clock_source = source;
    return leave(OK);
}

API int cuptiActivityEnable(uint32_t kind) {
    const int error = enter(ENABLE);
    if (error) return leave(error);
    enabled = kind == KERNEL_KIND;
    attached = 1;
    return leave(OK);
}

API int cuptiActivityDisable(uint32_t kind) {
    const int error = enter(DISABLE);
    if (error) return leave(error);
    if (kind == KERNEL_KIND) enabled = 0;
    return leave(OK);
}

API int cuptiActivityFlushAll(uint32_t flag) {
    const int error = enter(FLUSH);
    if (error) return leave(error);
    if (complete) deliver_all(flag & 1);
    return leave(OK);
}

/* Takes no lock: clients call it for each record. */
API int cuptiActivityGetNextRecord(uint8_t *bytes, size_t filled, void **record) {
    uint8_t *next = *record ? (uint8_t *)*record + record_size : bytes;
    if (!bytes || next + record_size > bytes + filled) return NO_MORE;
    *record = next;
    return OK;
}

API int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) {
    (void)context, (void)stream;
    const int error = enter(DROPPED);
    if (error) return leave(error);
    *count = dropped;
    dropped = 0;
    return leave(OK);
}

API int cuptiFinalize(void) {
    const int error = enter(FINALIZE);
    if (error) return leave(error);
    memset(&current, 0, sizeof current);
    waiting = enabled = attached = domains = 0;
    request = NULL;
    complete = NULL;
    clock_source = NULL;
    subscriber = NULL;
    return leave(OK);
}

static void must_be_subscribed(int call, const void *handle) {
    if (handle == &subscriber && subscriber) return;
    fprintf(stderr, "fake libcupti: called (%d) with a subscriber that is gone\n", call);
    abort();
}

API int cuptiSubscribe(void **handle, callback_t callback, void *data) {
    const int error = enter(SUBSCRIBE);
    if (error) return leave(error);
    if (subscriber || other_subscriber) return leave(TAKEN);
    subscriber = callback;
    subscriber_data = data;
    *handle = &subscriber;
    attached = 1;
    return leave(OK);
}

API int cuptiUnsubscribe(void *handle) {
    const int error = enter(UNSUBSCRIBE);
    if (error) return leave(error);
    must_be_subscribed(UNSUBSCRIBE, handle);
    subscriber = NULL;
    domains = 0;
    return leave(OK);
}

API int cuptiEnableDomain(uint32_t enable, void *handle, uint32_t domain) {
    const int error = enter(DOMAIN_ON);
    if (error) return leave(error);
    must_be_subscribed(DOMAIN_ON, handle);
    domains = enable ? domains | 1 << domain : domains & ~(1 << domain);
    return worked(DOMAIN_ON);
}

/* ---- what tests do ---- */

/* The other tool's: cycles of the processor, of which it takes CUPTI's times to be. */
#define OTHER_CYCLES 2
static uint64_t other_clock(void) { return OTHER_CYCLES * now; }

static struct record *room(void) {
    if (current.bytes && current.used + record_size > current.size) {
        const struct buffer one = current;
        retire_current();
        if (!one.running) deliver(full[--waiting]);
    }
    if (!current.bytes) {
        size_t most = 0;
        memset(&current, 0, sizeof current);
        if (request) request(&current.bytes, &current.size, &most);
    }
    if (!current.bytes || current.used + record_size > current.size) return NULL;
    struct record *record = (struct record *)(current.bytes + current.used);
    current.used += record_size;
    return record;
}

static int launch(const struct fake_kernel *kernel) {
    if (!enabled) return 0;
    struct record *record = room();
    if (!record) {
        dropped++;
        return -1;
    }
    memset((uint8_t *)record + sizeof *record, 0xAB, record_size - sizeof *record);
    record->kind = KERNEL_KIND;
    const uint64_t unit = clock_source == other_clock ? OTHER_CYCLES : 1;
    record->start = kernel->start * unit;
    record->end = kernel->end * unit;
    memcpy(record->grid, kernel->grid, sizeof record->grid);
    memcpy(record->block, kernel->block, sizeof record->block);
    record->name = kernel->name;
    current.running += kernel->start != 0 && kernel->end == 0;
    return 1;
}

API int fake_launch(const struct fake_kernel *kernel) {
    pthread_mutex_lock(&lock);
    return leave(launch(kernel));
}

API long fake_launch_many(const char *const *names, int number, long count, uint64_t duration) {
    long recorded = 0;
    pthread_mutex_lock(&lock);
    struct fake_kernel kernel = {NULL, 1000, 0, {0, 1, 1}, {256, 1, 1}};
    for (long i = 0; i < count; i++) {
        kernel.name = names[i % number];
        kernel.grid[0] = 128 + (int)(i % number) % 3;
        kernel.end = kernel.start + duration + (uint64_t)(i % 97);
        recorded += launch(&kernel) == 1;
        kernel.start += duration + 200;
    }
    leave(OK);
    return recorded;
}

static void finish(struct buffer *one) {
    for (size_t at = 0; at < one->used; at += record_size) {
        struct record *record = (struct record *)(one->bytes + at);
        if (record->start != 0 && record->end == 0) record->end = record->start + 1000;
    }
    one->running = 0;
}

API void fake_finish(void) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < waiting; i++) finish(&full[i]);
    if (current.bytes) finish(&current);
    leave(OK);
}

API void fake_cuda_call(void) {
    for (uint32_t site = 0; site < 2; site++) {
        pthread_mutex_lock(&lock);
        const callback_t callback = domains ? subscriber : NULL;
        void *const user = subscriber_data;
        leave(OK);
        const uint32_t data[64] = {site};
        if (callback) callback(user, 2, 1, data);
    }
}

/* The other tool's buffers: kept on a list for ever, and one of them is free now and then. */
#define OTHER_BYTES (LONGEST * 512)
struct other {
    struct other *next;
    uint8_t pad[56], bytes[OTHER_BYTES];
};
static struct other *others;
static uint8_t *other_free;

static void other_request(uint8_t **bytes, size_t *size, size_t *most) {
    if (!other_free) {
        struct other *one = malloc(sizeof *one);
        one->next = others;
        others = one;
        other_free = one->bytes;
    }
    *bytes = other_free;
    other_free = NULL;
    *size = OTHER_BYTES;
    *most = 0;
}

static void other_complete(void *context, uint32_t stream, uint8_t *bytes, size_t size, size_t filled) {
    (void)context, (void)stream;
    other_records += filled / record_size;
    if (size == OTHER_BYTES && !other_free) other_free = bytes; /* what is not its own it ignores, as Kineto does */
}

API void fake_other_tool(void) {
    pthread_mutex_lock(&lock);
    request = other_request;
    complete = other_complete;
    clock_source = other_clock;
    enabled = attached = 1;
    leave(OK);
}

API double fake_seconds_alone(const char *const *names, int number, long count, uint64_t duration) {
    struct timespec from, to;
    fake_other_tool();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    fake_launch_many(names, number, count, duration);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    pthread_mutex_lock(&lock);
    deliver_all(1);
    leave(OK);
    return (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
}

API void fake_other_subscriber(int there) {
    pthread_mutex_lock(&lock);
    other_subscriber = there;
    leave(OK);
}

API void fake_fail(int call, int error, int times) {
    pthread_mutex_lock(&lock);
    error_of[call] = error;
    error_times[call] = times;
    leave(OK);
}

API void fake_after(int call, void (*then)(void)) {
    pthread_mutex_lock(&lock);
    then_of[call] = then;
    leave(OK);
}

API int fake_subscribed(void) {
    pthread_mutex_lock(&lock);
    const int there = subscriber != NULL;
    leave(OK);
    return there;
}

API void fake_set_now(uint64_t nanoseconds) {
    pthread_mutex_lock(&lock);
    now = nanoseconds;
    leave(OK);
}

API void fake_set_record_size(uint64_t size) { record_size = size; }

API void fake_lose(uint64_t records) {
    pthread_mutex_lock(&lock);
    dropped += records;
    leave(OK);
}

API void fake_other_record(void) {
    pthread_mutex_lock(&lock);
    struct record *record = enabled ? room() : NULL;
    if (record) {
        memset(record, 0xAB, record_size);
        record->kind = OTHER_KIND;
    }
    leave(OK);
}

API uint64_t fake_calls(int call) {
    pthread_mutex_lock(&lock);
    const uint64_t count = calls[call];
    leave(OK);
    return count;
}

API uint64_t fake_other_tool_records(void) { return other_records; }
API int fake_enabled(void) { return enabled; }
API int fake_attached(void) { return attached; }
