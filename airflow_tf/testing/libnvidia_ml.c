/* A simulated NVML: answers from the text file $AIRFLOW_TF_NVML_STATE, read anew at each call.
 *
 * The file is written by airflow_tf/testing/nvml.py, one fact per line: a word, a blank, its values. "gpu" begins a
 * GPU, "slice" a MIG slice of the last GPU; lines before the first GPU hold for all calls. What has no line is not
 * supported. A handle stays that of one device by its UUID; once the device is gone, calls with it say "GPU is lost".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, VERSION_MISMATCH = 25 };
enum { MAX_DEVICES = 128, MAX_PROCESSES = 64, MAX_FAULTS = 64, MAX_HANDLES = 512, TEXT = 256 };
enum { MEMORY_V2 = 0x02000028, RECOVERY_ACTION = 230, UNSIGNED_INT = 1 };
static const unsigned long long UNKNOWN_BYTES = ~0ULL;

typedef unsigned long long Bytes;
typedef char *Handle; /* the UUID, kept for ever */

struct process { unsigned pid; Bytes bytes; unsigned gpu_instance, compute_instance; };
struct memory { Bytes total, free, used; };
struct memory_v2 { unsigned version; Bytes total, reserved, free, used; };
struct utilization { unsigned gpu, memory; };
struct field { unsigned id, scope; long long timestamp, latency; int type, result; Bytes value; };
struct pci { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; };

struct fault { char word[TEXT], function[TEXT]; double value; int device; }; /* device -1: all calls */

struct device {
    int is_slice, parent;
    char uuid[TEXT], name[TEXT], bus_id[TEXT];
    int has_memory, has_utilization, has_mode, has_mig, has_ecc, has_remap, has_retirement, has_recovery;
    Bytes total, used, reserved, ecc;
    unsigned utilization, mode, remap[4], retirement, recovery, process_count, graphics_count;
    struct process processes[MAX_PROCESSES], graphics[MAX_PROCESSES];
};

static struct device devices[MAX_DEVICES];
static struct fault faults[MAX_FAULTS];
static int device_count, fault_count, initialized;
static char *handles[MAX_HANDLES];

static void copy(char *target, const char *text) {
    strncpy(target, text, TEXT - 1);
    target[TEXT - 1] = 0;
}

static void add_process(struct process *processes, unsigned *count, const char *values) {
    struct process *process = &processes[*count];
    if (*count == MAX_PROCESSES) return;
    process->gpu_instance = process->compute_instance = 0xffffffff;
    process->bytes = UNKNOWN_BYTES;
    if (sscanf(values, "%u %llu", &process->pid, &process->bytes) >= 1) ++*count;
}

static void add_fault(const char *word, const char *values, int device) {
    struct fault *fault = &faults[fault_count];
    if (fault_count == MAX_FAULTS) return;
    fault->value = 0;
    fault->device = device;
    copy(fault->word, word);
    if (sscanf(values, "%255s %lf", fault->function, &fault->value) >= 1) fault_count++;
}

static void begin_device(int is_slice) {
    static int last_gpu;
    struct device *device = &devices[device_count];
    if (device_count == MAX_DEVICES) return;
    memset(device, 0, sizeof *device);
    device->is_slice = is_slice;
    if (!is_slice) last_gpu = device_count;
    device->parent = last_gpu;
    device_count++;
}

static void set_fact(struct device *device, const char *word, const char *values) {
    if (!strcmp(word, "uuid")) copy(device->uuid, values);
    else if (!strcmp(word, "name")) copy(device->name, values);
    else if (!strcmp(word, "bus_id")) copy(device->bus_id, values);
    else if (!strcmp(word, "memory"))
        device->has_memory = sscanf(values, "%llu %llu %llu", &device->total, &device->used, &device->reserved) == 3;
    else if (!strcmp(word, "utilization")) device->has_utilization = sscanf(values, "%u", &device->utilization) == 1;
    else if (!strcmp(word, "compute_mode")) device->has_mode = sscanf(values, "%u", &device->mode) == 1;
    else if (!strcmp(word, "mig")) device->has_mig = 1;
    else if (!strcmp(word, "ecc")) device->has_ecc = sscanf(values, "%llu", &device->ecc) == 1;
    else if (!strcmp(word, "retirement")) device->has_retirement = sscanf(values, "%u", &device->retirement) == 1;
    else if (!strcmp(word, "remap"))
        device->has_remap = sscanf(values, "%u %u %u %u", &device->remap[0], &device->remap[1], &device->remap[2],
                                   &device->remap[3]) == 4;
    else if (!strcmp(word, "recovery")) device->has_recovery = sscanf(values, "%u", &device->recovery) == 1;
    else if (!strcmp(word, "process")) add_process(device->processes, &device->process_count, values);
    else if (!strcmp(word, "graphics")) add_process(device->graphics, &device->graphics_count, values);
}

static int load(void) {
    const char *path = getenv("AIRFLOW_TF_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[2 * TEXT];
    if (!file) return DRIVER_NOT_LOADED;
    device_count = fault_count = 0;
    while (fgets(line, sizeof line, file)) {
        char *values = strchr(line, ' ');
        line[strcspn(line, "\n")] = 0;
        if (values) *values++ = 0;
        else values = line + strlen(line);
        if (!strcmp(line, "gpu") || !strcmp(line, "slice")) begin_device(!strcmp(line, "slice"));
        else if (!strcmp(line, "error") || !strcmp(line, "hang") || !strcmp(line, "crash"))
            add_fault(line, values, device_count - 1);
        else if (device_count) set_fact(&devices[device_count - 1], line, values);
    }
    fclose(file);
    return SUCCESS;
}

static struct device *find(Handle handle) {
    for (int index = 0; handle && index < device_count; index++)
        if (!strcmp(devices[index].uuid, handle)) return &devices[index];
    return NULL;
}

static Handle handle_of(const struct device *device) {
    int index = 0;
    for (; index < MAX_HANDLES && handles[index]; index++)
        if (!strcmp(handles[index], device->uuid)) return handles[index];
    return index < MAX_HANDLES ? (handles[index] = strdup(device->uuid)) : NULL;
}

static const struct fault *find_fault(const char *word, const char *function, Handle handle) {
    for (int index = 0; index < fault_count; index++) {
        const struct fault *fault = &faults[index];
        int meant = fault->device < 0 || (handle && find(handle) == &devices[fault->device]);
        if (meant && !strcmp(fault->word, word) && (!strcmp(fault->function, function) || !strcmp(fault->function, "*")))
            return fault;
    }
    return NULL;
}

/* Says in a file beside the state that a call hangs, and hangs until the state no longer says so or the time is over. */
static void hang(const char *function, Handle handle) {
    char path[4096];
    const struct fault *fault = find_fault("hang", function, handle);
    double left = fault ? fault->value : 0;
    if (!fault) return;
    snprintf(path, sizeof path, "%s.hangs", getenv("AIRFLOW_TF_NVML_STATE"));
    FILE *mark = fopen(path, "w");
    if (mark) fclose(mark);
    for (; left > 0 && find_fault("hang", function, handle); left -= 0.01) {
        usleep(10000);
        load();
    }
}

/* What every function does first; gives the device, or the error to return. */
static int enter(const char *function, Handle handle, struct device **device) {
    const struct fault *fault;
    int result = load();
    if (result) return result;
    if (!initialized && strcmp(function, "nvmlInitWithFlags")) return UNINITIALIZED;
    hang(function, handle);
    if (find_fault("crash", function, handle)) abort();
    if (handle && !find(handle)) return GPU_IS_LOST;
    if ((fault = find_fault("error", function, handle))) return (int)fault->value;
    if (device) *device = find(handle);
    return SUCCESS;
}

#define ENTER(handle)                                                                                                  \
    struct device *device = NULL;                                                                                      \
    int result = enter(__func__, handle, &device);                                                                     \
    if (result) return result;                                                                                         \
    if (!device) return INVALID_ARGUMENT
#define REPORTED(condition) if (!(condition)) return NOT_SUPPORTED

int nvmlInitWithFlags(unsigned flags) {
    int result = enter(__func__, NULL, NULL);
    (void)flags;
    if (!result) initialized++;
    return result;
}

int nvmlShutdown(void) {
    if (!initialized) return UNINITIALIZED;
    initialized--;
    return SUCCESS;
}

const char *nvmlErrorString(int result) {
    switch (result) {
    case NOT_SUPPORTED: return "Not Supported";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    case 999: return "Unknown Error";
    default: return "Simulated Error";
    }
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int result = enter(__func__, NULL, NULL);
    *count = 0;
    for (int index = 0; index < device_count; index++) *count += !devices[index].is_slice;
    return result;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *handle) {
    int result = enter(__func__, NULL, NULL);
    if (result) return result;
    for (int at = 0; at < device_count; at++) {
        if (devices[at].is_slice || index--) continue;
        *handle = handle_of(&devices[at]);
        return enter(__func__, *handle, NULL);
    }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetMigMode(Handle handle, unsigned *current, unsigned *pending) {
    ENTER(handle);
    REPORTED(device->has_mig);
    *current = *pending = 1;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Handle handle, unsigned *count) {
    ENTER(handle);
    *count = device->has_mig ? 7 : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Handle handle, unsigned index, Handle *slice) {
    ENTER(handle);
    for (int at = 0; at < device_count; at++) {
        if (!devices[at].is_slice || &devices[devices[at].parent] != device || index--) continue;
        *slice = handle_of(&devices[at]);
        return SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(Handle handle, char *text, unsigned size) {
    ENTER(handle);
    snprintf(text, size, "%s", device->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(Handle handle, char *text, unsigned size) {
    ENTER(handle);
    snprintf(text, size, "%s", device->name);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(Handle handle, struct pci *pci) {
    ENTER(handle);
    REPORTED(device->bus_id[0]);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%.31s", device->bus_id);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Handle handle, struct memory *memory) {
    ENTER(handle);
    REPORTED(device->has_memory);
    memory->total = device->total;
    memory->used = device->used + device->reserved;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Handle handle, struct memory_v2 *memory) {
    ENTER(handle);
    if (memory->version != MEMORY_V2) return VERSION_MISMATCH;
    REPORTED(device->has_memory);
    memory->total = device->total;
    memory->reserved = device->reserved;
    memory->used = device->used;
    memory->free = memory->total - memory->used - memory->reserved;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Handle handle, struct utilization *rates) {
    ENTER(handle);
    REPORTED(device->has_utilization);
    rates->gpu = rates->memory = device->utilization;
    return SUCCESS;
}

static int give(const struct process *found, unsigned found_count, unsigned *count, struct process *processes) {
    unsigned room = *count;
    *count = found_count;
    if (!found_count) return SUCCESS;
    if (!processes || room < found_count) return INSUFFICIENT_SIZE;
    memcpy(processes, found, found_count * sizeof *processes);
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned *count, struct process *processes) {
    ENTER(handle);
    return give(device->processes, device->process_count, count, processes);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle handle, unsigned *count, struct process *processes) {
    ENTER(handle);
    return give(device->graphics, device->graphics_count, count, processes);
}

int nvmlDeviceGetFieldValues(Handle handle, int count, struct field *fields) {
    ENTER(handle);
    for (int index = 0; index < count; index++) {
        int known = fields[index].id == RECOVERY_ACTION && device->has_recovery;
        fields[index].type = UNSIGNED_INT;
        fields[index].result = known ? SUCCESS : NOT_SUPPORTED;
        fields[index].value = known ? device->recovery : 0;
    }
    return SUCCESS;
}

int nvmlDeviceGetComputeMode(Handle handle, unsigned *mode) {
    ENTER(handle);
    REPORTED(device->has_mode);
    *mode = device->mode;
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(Handle handle, unsigned type, unsigned counter, Bytes *count) {
    enum { UNCORRECTED = 1, VOLATILE = 0 };
    ENTER(handle);
    REPORTED(device->has_ecc);
    *count = type == UNCORRECTED && counter == VOLATILE ? device->ecc : 0;
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(Handle handle, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                              unsigned *failure) {
    ENTER(handle);
    REPORTED(device->has_remap);
    *correctable = device->remap[0];
    *uncorrectable = device->remap[1];
    *pending = device->remap[2];
    *failure = device->remap[3];
    return SUCCESS;
}

int nvmlDeviceGetRetiredPagesPendingStatus(Handle handle, unsigned *pending) {
    ENTER(handle);
    REPORTED(device->has_retirement);
    *pending = device->retirement;
    return SUCCESS;
}
