/* A stand-in of libcuda: one GPU whose memory is a number in a file of each process, and the checkpoints of the driver.

   In the folder LIBCUDA_FOLDER: PID has the bytes that the process uses of LIBCUDA_MEMORY, state.PID its state,
   parked.PID the bytes that a checkpoint took. fail.FUNCTION has the error code that a function returns. With a file
   `corrupt`, memory is not what it was after a restore. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK, INVALID_VALUE, OUT_OF_MEMORY, ILLEGAL_STATE = 401 };
enum { RUNNING, LOCKED, CHECKPOINTED, FAILED };

static const struct { int code; const char *name; } NAMES[] = {
    {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"}, {401, "CUDA_ERROR_ILLEGAL_STATE"},
    {600, "CUDA_ERROR_NOT_READY"}, {800, "CUDA_ERROR_NOT_PERMITTED"}, {801, "CUDA_ERROR_NOT_SUPPORTED"},
};

static char *path(char *buffer, const char *prefix, const char *name) {
    snprintf(buffer, 1024, "%s/%s%s", getenv("LIBCUDA_FOLDER"), prefix, name);
    return buffer;
}

static long read_number(const char *prefix, const char *name, long otherwise) {
    char buffer[1024];
    FILE *file = fopen(path(buffer, prefix, name), "r");
    if (!file) return otherwise;
    if (fscanf(file, "%ld", &otherwise) != 1) otherwise = 0;
    fclose(file);
    return otherwise;
}

static void write_number(const char *prefix, const char *name, long number) {
    char buffer[1024], other[1040];
    path(buffer, prefix, name);
    snprintf(other, sizeof other, "%s/.%d", getenv("LIBCUDA_FOLDER"), gettid());
    FILE *file = fopen(other, "w");
    fprintf(file, "%ld", number);
    fclose(file);
    rename(other, buffer);
}

static const char *text(char *buffer, int pid) {
    snprintf(buffer, 16, "%d", pid);
    return buffer;
}

static long used(void) {
    long sum = 0;
    char proc[300];
    DIR *folder = opendir(getenv("LIBCUDA_FOLDER"));
    for (struct dirent *entry; (entry = readdir(folder));) {
        snprintf(proc, sizeof proc, "/proc/%s", entry->d_name);
        if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9' && !access(proc, F_OK))
            sum += read_number("", entry->d_name, 0);
    }
    closedir(folder);
    return sum;
}

static int take(const char *pid, long size) {
    if (used() + size > atol(getenv("LIBCUDA_MEMORY"))) return OUT_OF_MEMORY;
    write_number("", pid, read_number("", pid, 0) + size);
    return OK;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : (int)read_number("fail.", "Init", OK); }

int cuDriverGetVersion(int *version) {
    *version = (int)read_number("version", "", 13000);
    return OK;
}

int cuGetErrorName(int code, const char **name) {
    for (size_t at = 0; at < sizeof NAMES / sizeof *NAMES; at++)
        if (NAMES[at].code == code) return *name = NAMES[at].name, OK;
    return INVALID_VALUE;
}

/* Waits while the process is locked, as every call of CUDA. */
int cuCtxSynchronize(void) {
    char pid[16];
    text(pid, getpid());
    while (read_number("state.", pid, RUNNING) != RUNNING) usleep(2000);
    return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    char pid[16];
    *context = NULL;
    write_number("state.", text(pid, getpid()), RUNNING);
    return take(pid, read_number("context", "", 0)) + 0 * device;
}

int cuMemAlloc_v2(uint64_t *pointer, size_t size) {
    char pid[16];
    cuCtxSynchronize();
    *pointer = (uint64_t)calloc(1, 64);
    return take(text(pid, getpid()), (long)size);
}

int cuMemFree_v2(uint64_t pointer, size_t size) { /* the real one knows the size */
    char pid[16];
    text(pid, getpid());
    free((void *)pointer);
    write_number("", pid, read_number("", pid, 0) - (long)size);
    return OK;
}

int cuMemcpyHtoD_v2(uint64_t pointer, const void *host, size_t size) {
    cuCtxSynchronize();
    memcpy((void *)pointer, host, size < 64 ? size : 64);
    return OK;
}

int cuMemcpyDtoH_v2(void *host, uint64_t pointer, size_t size) {
    char pid[16], buffer[1024];
    cuCtxSynchronize();
    memcpy(host, (void *)pointer, size < 64 ? size : 64);
    if (read_number("parked.", text(pid, getpid()), -1) >= 0 && !access(path(buffer, "corrupt", ""), F_OK))
        *(char *)host ^= 1;
    return OK;
}

static int change(const char *function, int pid, int from, int to) {
    char name[16];
    int code = (int)read_number("fail.", function, OK);
    if (code) return code;
    if (read_number("state.", text(name, pid), -1) != from) return ILLEGAL_STATE;
    write_number("state.", name, to);
    return OK;
}

int cuCheckpointProcessGetState(int pid, int *state) {
    char name[16];
    long found = read_number("state.", text(name, pid), -1);
    *state = (int)found;
    return found < 0 ? INVALID_VALUE : OK;
}

int cuCheckpointProcessLock(int pid, void *arguments) { return change("Lock", pid, RUNNING, LOCKED) + 0 * !arguments; }

int cuCheckpointProcessCheckpoint(int pid, void *arguments) {
    char name[16];
    int code = change("Checkpoint", pid, LOCKED, CHECKPOINTED) + 0 * !arguments;
    if (code) return code;
    text(name, pid);
    write_number("parked.", name, read_number("", name, 0));
    write_number("", name, 0);
    return OK;
}

int cuCheckpointProcessRestore(int pid, void *arguments) {
    char name[16];
    long size = read_number("parked.", text(name, pid), 0);
    int code = change("Restore", pid, CHECKPOINTED, LOCKED) + 0 * !arguments;
    if (!code && (code = take(name, size))) write_number("state.", name, CHECKPOINTED);
    return code;
}

int cuCheckpointProcessUnlock(int pid, void *arguments) {
    return change("Unlock", pid, LOCKED, RUNNING) + 0 * !arguments;
}
