// What the core knows of CUPTI: the entry points it looks up and the fields of a kernel record it reads.
//
// Own declarations, so that no CUDA toolkit is needed to build. Every version of the kernel record since CUDA 7 (144 to
// 248 bytes) begins with the fields below at these offsets; how long a record is, only CUPTI has to know.
// Does not cover: the interface with subscribers of its own (13.2 and newer) and hardware tracing; the first interface
// is in every CUPTI of CUDA 12 and 13.
#pragma once

#include <cstddef>
#include <cstdint>

namespace holdfast::cupti {

constexpr std::uint32_t KERNEL = 3;              // kinds of records
constexpr std::uint32_t CONCURRENT_KERNEL = 10;  // the same, without making kernels run one after another
constexpr std::uint32_t FORCED = 1;              // flush: also buffers with unfinished records
constexpr std::uint32_t DRIVER_API = 1;          // domains of callbacks
constexpr std::uint32_t RUNTIME_API = 2;
constexpr std::uint32_t CALL_ENDS = 1;           // first field of a callback's data
constexpr std::uint32_t LEAVES_SAFELY = 23;      // version of CUDA 12.5: before, leaving could crash with CUDA graphs

struct KernelRecord {
    std::uint32_t kind;
    std::uint8_t unread1[12];
    std::uint64_t start;  // nanoseconds
    std::uint64_t end;
    std::uint64_t completed;
    std::uint32_t device, context, stream;
    std::int32_t shape[6];  // grid, block
    std::uint8_t unread2[16];
    std::uint32_t correlation;
    std::int64_t grid_id;
    const char *name;
};
static_assert(offsetof(KernelRecord, kind) == 0);
static_assert(offsetof(KernelRecord, start) == 16);
static_assert(offsetof(KernelRecord, end) == 24);
static_assert(offsetof(KernelRecord, device) == 40);
static_assert(offsetof(KernelRecord, shape) == 52);
static_assert(offsetof(KernelRecord, correlation) == 92);
static_assert(offsetof(KernelRecord, grid_id) == 96);
static_assert(offsetof(KernelRecord, name) == 104);
static_assert(sizeof(KernelRecord) == 112);

using Result = std::int32_t;  // 0 is success
using Request = void (*)(std::uint8_t **buffer, std::size_t *size, std::size_t *most_records);
using Complete = void (*)(void *context, std::uint32_t stream, std::uint8_t *buffer, std::size_t size,
                          std::size_t filled);
using Clock = std::uint64_t (*)();
using ApiCallback = void (*)(void *user, std::uint32_t domain, std::uint32_t id, const void *data);

struct Functions {
    Result (*GetVersion)(std::uint32_t *);
    Result (*GetResultString)(Result, const char **);
    Result (*GetTimestamp)(std::uint64_t *);  // nanoseconds, of the clock of records
    Result (*ActivityRegisterCallbacks)(Request, Complete);
    Result (*ActivityRegisterTimestampCallback)(Clock);  // CUPTI of CUDA 11.6 and newer
    Result (*ActivityEnable)(std::uint32_t kind);
    Result (*ActivityDisable)(std::uint32_t kind);
    Result (*ActivityFlushAll)(std::uint32_t flag);
    Result (*ActivityGetNextRecord)(std::uint8_t *buffer, std::size_t filled, void **record);
    Result (*ActivityGetNumDroppedRecords)(void *context, std::uint32_t stream, std::size_t *dropped);
    Result (*Finalize)();
    Result (*Subscribe)(void **subscriber, ApiCallback, void *user);
    Result (*Unsubscribe)(void *subscriber);
    Result (*EnableDomain)(std::uint32_t enable, void *subscriber, std::uint32_t domain);
};

}  // namespace holdfast::cupti
