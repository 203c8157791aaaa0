/* How tests drive the fake libcupti: what the GPU does, what other tools do, and what goes wrong. */
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fake_call { REGISTER, ENABLE, DISABLE, FLUSH, NEXT, DROPPED, FINALIZE, SUBSCRIBE, UNSUBSCRIBE, DOMAIN_ON, CLOCK, CALLS };

struct fake_kernel {
    const char *name;
    uint64_t start, end; /* ns; end 0: still running until fake_finish */
    int32_t grid[3], block[3];
};

/* A launch: 1 recorded, 0 not (nothing enabled), -1 dropped (the client gave no buffer). */
int fake_launch(const struct fake_kernel *kernel);
/* `count` launches of `names` in turn, `duration` + (i mod 97) ns each, of three shapes. How many were recorded. */
long fake_launch_many(const char *const *names, int number, long count, uint64_t duration);
/* What runs ends: one moment after its start. */
void fake_finish(void);
/* Any call of CUDA: subscribers hear its begin and its end. */
void fake_cuda_call(void);
/* Another tool registers callbacks and a clock of its own; its buffer is left with CUPTI. */
void fake_other_tool(void);
/* Another tool holds the only subscription, or no longer. */
void fake_other_subscriber(int there);
/* The next `times` calls of this kind fail with `error`. */
void fake_fail(int call, int error, int times);
/* `then` runs once, before the next call of this kind that works returns. DOMAIN_ON only. */
void fake_after(int call, void (*then)(void));
/* Whether the client under test is subscribed. */
int fake_subscribed(void);
/* CUPTI's clock, which stands otherwise. */
void fake_set_now(uint64_t nanoseconds);
void fake_set_record_size(uint64_t size);
/* CUPTI had no room for so many records. */
void fake_lose(uint64_t records);
/* A record of a kind that is no kernel. */
void fake_other_record(void);
uint64_t fake_calls(int call);
/* Records that the other tool's callback was given. */
uint64_t fake_other_tool_records(void);
int fake_enabled(void);
int fake_attached(void);
/* Seconds of the processor for fake_launch_many with a client that throws its buffers away. */
double fake_seconds_alone(const char *const *names, int number, long count, uint64_t duration);

#ifdef __cplusplus
}
#endif
