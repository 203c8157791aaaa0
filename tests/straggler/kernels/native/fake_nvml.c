/* A stand-in of libnvidia-ml.so.1: one GPU, and one MIG part of it. What it answers is in the environment. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
static int gpu, part;

static int answer(const char *name) {
    const char *hangs = getenv("NVML_HANGS"), *refused = getenv("NVML_NOT_SUPPORTED");
    if (hangs && strcmp(hangs, name) == 0) usleep(1500000);
    return refused && (strcmp(refused, "all") == 0 || strcmp(refused, name) == 0) ? NOT_SUPPORTED : OK;
}
static unsigned told(const char *name, unsigned otherwise) {
    const char *value = getenv(name);
    return value ? (unsigned)atol(value) : otherwise;
}
/* For the checks of a node's health: $NVML_FACTS is a file of lines NAME=VALUE, read at each call. */
static long fact(const char *name, long otherwise) {
    const char *path = getenv("NVML_FACTS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[128];
    size_t length = strlen(name);
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, length) == 0 && line[length] == '=') otherwise = atol(line + length + 1);
    if (file) fclose(file);
    return otherwise;
}
int nvmlInitWithFlags(unsigned flags) { return told("NVML_INIT", OK); }
int nvmlInit_v2(void) { return told("NVML_INIT", OK); }
int nvmlShutdown(void) { answer(__func__); fputs("shut down\n", stderr); return OK; }
const char *nvmlErrorString(int error) { return error == NOT_SUPPORTED ? "Not Supported" : "Not Found"; }
static int by(const char *given, const char *variable, int *found, int **handle) {
    const char *known = getenv(variable);
    if (!known || strcasecmp(known, given) != 0) return NOT_FOUND;
    *handle = found;
    return OK;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *place, int **handle) { return by(place, "NVML_PCI", &gpu, handle); }
int nvmlDeviceGetHandleByUUID(const char *uuid, int **handle) {
    return by(uuid, "NVML_UUID", &gpu, handle) == OK ? OK : by(uuid, "NVML_PART", &part, handle);
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, int **handle) {
    char text[16];
    snprintf(text, sizeof text, "%u", index);
    return by(text, "NVML_INDEX", &gpu, handle);
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(int *from, int **handle) {
    *handle = &gpu;
    return from == &part ? OK : NOT_FOUND;
}
#define ASKED(value_) { *value = (value_); return handle == &gpu ? answer(__func__) : NOT_SUPPORTED; }
int nvmlDeviceGetClockInfo(int *handle, int type, unsigned *value) ASKED(type == 1 ? 1200 : 0)
int nvmlDeviceGetMaxClockInfo(int *handle, int type, unsigned *value) ASKED(type == 1 ? 1980 : 0)
int nvmlDeviceGetCurrentClocksEventReasons(int *handle, unsigned long long *value) ASKED(fact("SLOWED", 0x40 | 1ll << 40))
int nvmlDeviceGetCurrentClocksThrottleReasons(int *handle, unsigned long long *value) ASKED(0x20)
int nvmlDeviceGetTemperature(int *handle, int sensor, unsigned *value) ASKED(88)
int nvmlDeviceGetPowerUsage(int *handle, unsigned *value) ASKED(412345)
int nvmlDeviceGetEnforcedPowerLimit(int *handle, unsigned *value) ASKED(700000)
int nvmlDeviceGetTotalEccErrors(int *handle, int kind, int counter, unsigned long long *value)
    ASKED(counter == 0 ? fact(kind ? "UNCORRECTED" : "CORRECTED", told(kind ? "NVML_UNCORRECTED" : "NVML_CORRECTED", 0)) : 999)
int nvmlDeviceGetRemappedRows(int *handle, unsigned *value, unsigned *second, unsigned *pending, unsigned *failed) {
    *second = 1;
    *pending = fact("REMAP_PENDING", 1);
    *failed = fact("REMAP_FAILED", 0);
    ASKED(2)
}
int nvmlDeviceGetCount_v2(unsigned *value) { *value = fact("COUNT", 1); return answer(__func__); }
int nvmlDeviceGetName(int *handle, char *name, unsigned length) {
    snprintf(name, length, "Stand-in");
    return answer(__func__);
}
int nvmlDeviceGetPciInfo_v3(int *handle, char *info) {
    snprintf(info + 36, 32, "00000000:3B:00.0");
    return answer(__func__);
}
int nvmlDeviceGetRetiredPagesPendingStatus(int *handle, unsigned *value) ASKED(fact("RETIRED", 0))
int nvmlDeviceGetNvLinkState(int *handle, unsigned link, unsigned *value) {
    if (link >= 2) return 2;
    *value = link < fact("LINKS", 2);
    return answer(__func__);
}
int nvmlDeviceGetGpuFabricInfo(int *handle, unsigned char *info) {
    memset(info, fact("CLUSTER", 0), 16);
    memset(info + 16, 0, 8);
    *(unsigned *)(info + 24) = 3;
    return answer(__func__);
}
int nvmlDeviceGetComputeRunningProcesses_v3(int *handle, unsigned *count, unsigned long long *found) {
    unsigned room = *count;
    *count = fact("HOLDER", 0) != 0;
    if (!*count) return OK;
    if (!room) return 7;
    *(unsigned *)found = fact("HOLDER", 0);
    found[1] = fact("HELD", 4096ll) << 20;
    return answer(__func__);
}
