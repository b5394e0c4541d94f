// Takes the place of NVIDIA's driver for the driver's own libnvidia-ml.so, so that tests run that library without a GPU.
// x86-64 only: the layouts are those of 64 bits. The numbers of calls and the offsets are facts of the driver's interface
// (headers of github.com/NVIDIA/open-gpu-kernel-modules, MIT), found again by experiment; no code of it is used.
//
//   cc -shared -fPIC -O1 -o answers.so answers.c -ldl
//   NODE=FOLDER LD_PRELOAD=answers.so PROGRAM
//
// FOLDER/node says "driver VERSION" (without it, no driver is loaded), "gpus N" and "architecture hopper|ampere|volta". FOLDER/gpuN, which is read again at each
// call and may be absent, has lines of a name and numbers: "used MIB", "pids PID…" and, with 1, "lost", "hang" and "refuse".
// FOLDER/calls gets one line for each control call: its number, its length and the status that was answered.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

enum { MOST_GPUS = 16, MOST_PIDS = 200, MOST_OBJECTS = 1 << 16, MOST_FILES = 1 << 12, CONTROL_DEVICE = 255, MAJOR = 195 };
enum status { DONE = 0, GPU_IS_LOST = 0x0f, REFUSED = 0x56, NO_EVENT = 0x57 };
// Of every GPU, in MiB; LINKS NVLink links, of which one is down.
enum { TOTAL = 81559, RESERVED = 464, BAR1 = 131072, LINKS = 18, DOWN = 3 };

struct architecture {
    const char *name;
    uint32_t number, revision, device;
    uint32_t compute_class, graphics_class, copy_class, channel_class;
};
static const struct architecture ARCHITECTURES[] = {
    {"hopper", 0x180, 0xa1, 0x2330, 0xcbc0, 0xcb97, 0xc8b5, 0xc86f},
    {"ampere", 0x170, 0xa1, 0x20b2, 0xc6c0, 0xc697, 0xc6b5, 0xc56f},
    {"volta", 0x140, 0xa1, 0x1db1, 0xc3c0, 0xc397, 0xc3b5, 0xc36f},
};

static struct {
    char folder[256], driver[32];
    uint32_t gpus;
    const struct architecture *architecture;
    FILE *calls;
} node;

struct gpu {
    uint32_t index, used, lost, hang, refuse, pid_count, pids[MOST_PIDS];
};

// What the driver gave out: objects with their GPU, and the devices that are open.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { uint32_t client, handle, gpu; } objects[MOST_OBJECTS];
static uint32_t object_count;
static unsigned char is_device[MOST_FILES];
static int minor_of[MOST_FILES];

static uint32_t get(const void *from, unsigned at) { uint32_t n; memcpy(&n, (const char *)from + at, 4); return n; }
static uint64_t get64(const void *from, unsigned at) { uint64_t n; memcpy(&n, (const char *)from + at, 8); return n; }
static void set(void *to, unsigned at, uint32_t n) { memcpy((char *)to + at, &n, 4); }
static void set16(void *to, unsigned at, uint16_t n) { memcpy((char *)to + at, &n, 2); }
static void set64(void *to, unsigned at, uint64_t n) { memcpy((char *)to + at, &n, 8); }
static void set8(void *to, unsigned at, uint8_t n) { ((uint8_t *)to)[at] = n; }
static void *pointer(const void *from, unsigned at) { return (void *)(uintptr_t)get64(from, at); }

static int real_open(const char *path, int flags) {
    static int (*real)(const char *, int, ...);
    if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    return real(path, flags);
}
static int real_close(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "close");
    return real(fd);
}

static int text_of(const char *name, char *text, size_t room) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", node.folder, name);
    int fd = real_open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, room - 1);
    real_close(fd);
    text[length > 0 ? length : 0] = 0;
    return length > 0;
}

__attribute__((constructor)) static void begin(void) {
    char text[512], path[300], architecture[32] = "hopper";
    snprintf(node.folder, sizeof node.folder, "%s", getenv("NODE") ? getenv("NODE") : ".");
    node.architecture = ARCHITECTURES;
    if (text_of("node", text, sizeof text))
        for (char *rest, *line = strtok_r(text, "\n", &rest); line; line = strtok_r(0, "\n", &rest)) {
            sscanf(line, "driver %31s", node.driver);
            sscanf(line, "gpus %u", &node.gpus);
            sscanf(line, "architecture %31s", architecture);
        }
    if (node.gpus > MOST_GPUS) node.gpus = MOST_GPUS;
    for (unsigned i = 0; i < sizeof ARCHITECTURES / sizeof *ARCHITECTURES; i++)
        if (!strcmp(ARCHITECTURES[i].name, architecture)) node.architecture = &ARCHITECTURES[i];
    snprintf(path, sizeof path, "%s/calls", node.folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0 && (node.calls = fdopen(fd, "a"))) setvbuf(node.calls, 0, _IOLBF, 0);
}

static struct gpu gpu_now(uint32_t index) {
    struct gpu gpu = {.index = index, .used = 50176 + 1024 * index};
    char name[16], text[4096];
    snprintf(name, sizeof name, "gpu%u", index);
    if (!text_of(name, text, sizeof text)) return gpu;
    for (char *rest, *line = strtok_r(text, "\n", &rest); line; line = strtok_r(0, "\n", &rest)) {
        char *words, *word = strtok_r(line, " ", &words), *value;
        if (!word) continue;
        uint32_t *one = !strcmp(word, "used") ? &gpu.used : !strcmp(word, "lost") ? &gpu.lost : !strcmp(word, "hang") ? &gpu.hang
                      : !strcmp(word, "refuse") ? &gpu.refuse : 0;
        int pids = !strcmp(word, "pids");
        while ((value = strtok_r(0, " ", &words)))
            if (one) *one = strtoul(value, 0, 0);
            else if (pids && gpu.pid_count < MOST_PIDS) gpu.pids[gpu.pid_count++] = strtoul(value, 0, 0);
    }
    return gpu;
}

static uint32_t bus_of(uint32_t gpu) { return 0x18 + 8 * gpu; }
static uint32_t id_of(uint32_t gpu) { return bus_of(gpu) << 8; }
static uint32_t gpu_of_id(uint32_t id) { return ((id >> 8) - 0x18) / 8; }
static uint64_t microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

// Control calls: `p` has `size` bytes.
typedef enum status answer(const struct gpu *gpu, void *p, uint32_t size);

static enum status nothing(const struct gpu *gpu, void *p, uint32_t size) { (void)gpu, (void)p, (void)size; return DONE; }
static enum status zeros(const struct gpu *gpu, void *p, uint32_t size) { (void)gpu; memset(p, 0, size); return DONE; }
static enum status ids(const struct gpu *gpu, void *p, uint32_t size) {
    (void)gpu;
    memset(p, 0xff, size);
    for (uint32_t i = 0; i < node.gpus; i++) set(p, 4 * i, id_of(i));
    return DONE;
}
static enum status about_id(const struct gpu *gpu, void *p, uint32_t size) { // the older call has 40 bytes, the newer one 32
    (void)gpu;
    uint32_t id = get(p, 0), at = size == 40 ? 28 : 20;
    if (size == 32) memset(p, 0, size);
    set(p, 0, id), set(p, 4, 0x18), set(p, 8, gpu_of_id(id)), set(p, 12, 0);
    set(p, at, id), set(p, at + 4, gpu_of_id(id)), set(p, at + 8, UINT32_MAX);
    return DONE;
}
static enum status pci_of_id(const struct gpu *gpu, void *p, uint32_t size) {
    (void)gpu, (void)size;
    set(p, 4, 0), set16(p, 8, bus_of(gpu_of_id(get(p, 0)))), set16(p, 10, 0);
    return DONE;
}
static enum status not_drained(const struct gpu *gpu, void *p, uint32_t size) { (void)gpu, (void)size; set(p, 4, 0), set(p, 8, 0); return DONE; }
static enum status versions(const struct gpu *gpu, void *p, uint32_t size) {
    (void)gpu;
    for (unsigned at = 8; at + 8 <= size && at <= 24; at += 8) if (pointer(p, at)) strcpy(pointer(p, at), node.driver);
    return DONE;
}
static enum status brand(const struct gpu *gpu, void *p, uint32_t size) { (void)gpu, (void)size; set(p, 0, 0x10); return DONE; }
static unsigned classes(uint32_t *to) {
    const struct architecture *a = node.architecture;
    const uint32_t all[] = {a->graphics_class, a->compute_class, a->copy_class, a->channel_class, 0x2080, 0x80};
    if (to) memcpy(to, all, sizeof all);
    return sizeof all / sizeof *all;
}
static enum status class_list(const struct gpu *gpu, void *p, uint32_t size) { (void)gpu, (void)size; set(p, 0, classes((uint32_t *)p + 1)); return DONE; }
static enum status class_list_before(const struct gpu *gpu, void *p, uint32_t size) { (void)gpu, (void)size; set(p, 0, classes(pointer(p, 8))); return DONE; }
static enum status architecture(const struct gpu *gpu, void *p, uint32_t size) {
    (void)gpu, (void)size;
    set(p, 0, node.architecture->number), set(p, 4, 0), set(p, 8, node.architecture->revision);
    return DONE;
}
static enum status name(const struct gpu *gpu, void *p, uint32_t size) { (void)gpu; if (size >= 68) strcpy((char *)p + 4, "NVIDIA Imitation 80GB"); return DONE; }
static enum status uuid(const struct gpu *gpu, void *p, uint32_t size) {
    (void)size;
    if (get(p, 4) & 2) { // binary
        memset((char *)p + 12, 0, 16);
        set8(p, 12, 0xab), set8(p, 18, 0x40), set8(p, 20, 0x80), set8(p, 27, gpu->index + 1), set(p, 8, 16);
    } else set(p, 8, sprintf((char *)p + 12, "GPU-ab000000-0000-4000-8000-%012x", gpu->index + 1) + 1);
    return DONE;
}
static enum status pci_ids(const struct gpu *gpu, void *p, uint32_t size) {
    (void)gpu, (void)size;
    uint32_t device = node.architecture->device << 16 | 0x10de;
    set(p, 0, device), set(p, 4, 0x16c110de), set(p, 8, node.architecture->revision), set(p, 12, device);
    return DONE;
}
static enum status no_information(const struct gpu *gpu, void *p, uint32_t size) {
    (void)gpu;
    for (uint32_t i = 0; i < get(p, 0) && 8 * i + 12 <= size; i++) set(p, 8 + 8 * i, 0);
    return DONE;
}
static enum status no_information_before(const struct gpu *gpu, void *p, uint32_t size) { // its list is behind a pointer
    (void)gpu, (void)size;
    char *list = pointer(p, 8);
    for (uint32_t i = 0; i < get(p, 0); i++) set(list, 8 * i + 4, 0);
    return DONE;
}
static enum status no_features(const struct gpu *gpu, void *p, uint32_t size) { // a table of bytes behind a pointer
    (void)gpu, (void)size;
    if (pointer(p, 8)) memset(pointer(p, 8), 0, get(p, 0));
    return DONE;
}
static uint32_t memory_value(const struct gpu *gpu, uint32_t what) { // in KiB
    switch (what) {
    case 0x05: return BAR1 << 10;
    case 0x1d: return (BAR1 - 6) << 10;
    case 0x07: case 0x08: return TOTAL << 10;
    case 0x09: case 0x20: return (TOTAL - RESERVED) << 10;
    case 0x0b: return 5120; // the width of the bus
    case 0x16: return (TOTAL - RESERVED - gpu->used) << 10;
    default: return 0;
    }
}
static enum status memory(const struct gpu *gpu, void *p, uint32_t size) {
    for (uint32_t i = 0; i < get(p, 0) && 8 * i + 12 <= size; i++) set(p, 8 + 8 * i, memory_value(gpu, get(p, 4 + 8 * i)));
    return DONE;
}
static enum status memory_before(const struct gpu *gpu, void *p, uint32_t size) { // its list is behind a pointer
    (void)size;
    char *list = pointer(p, 8);
    for (uint32_t i = 0; i < get(p, 0); i++) set(list, 8 * i + 4, memory_value(gpu, get(list, 8 * i)));
    return DONE;
}
static enum status pids(const struct gpu *gpu, void *p, uint32_t size) {
    uint32_t n = get(p, 4) == node.architecture->compute_class ? gpu->pid_count : 0;
    for (uint32_t i = 0; i < n && 4 * i + 16 <= size; i++) set(p, 12 + 4 * i, gpu->pids[i]);
    set(p, 8, n);
    return DONE;
}
static enum status pid_memory(const struct gpu *gpu, void *p, uint32_t size) {
    uint32_t each = (size - 8) / MOST_PIDS;
    for (uint32_t i = 0; i < get(p, 0) && i < MOST_PIDS; i++) {
        char *entry = (char *)p + 8 + each * i;
        uint32_t pid = get(entry, 0), place = 0;
        while (place < gpu->pid_count && gpu->pids[place] != pid) place++;
        memset(entry + 8, 0, each - 8);
        set64(entry, 16, (uint64_t)(place + 1) << 26); // 64 MiB, 128 MiB, …
    }
    return DONE;
}
static enum status pid_shares(const struct gpu *gpu, void *p, uint32_t size) { // samples of engines of 116 bytes behind a time
    uint32_t each = (size - 16) / 72, pid = gpu->pid_count ? gpu->pids[0] : 0;
    if (each != 8 + 4 * 116 && each != 8 + 6 * 116) return REFUSED;
    memset((char *)p + 16, 0, size - 16);
    set(p, 4, size - 16), set(p, 8, 72), set(p, 12, 72);
    for (uint32_t i = 0; pid && i < 72; i++) {
        char *sample = (char *)p + 16 + each * i;
        set64(sample, 0, microseconds() - (72 - i) * 166667ull);
        set(sample, 8, 2000), set(sample, 16, pid);          // memory, in 1/100 %
        set(sample, 8 + 116, 3300), set(sample, 16 + 116, pid); // SMs
        for (uint32_t at = 8 + 2 * 116; at + 116 <= each; at += 116) set(sample, at + 8, UINT32_MAX);
    }
    return DONE;
}
static enum status time_of_gpu(const struct gpu *gpu, void *p, uint32_t size) {
    (void)gpu;
    for (uint32_t at = 8; at + 16 <= size; at += 16) set64(p, at, microseconds()), set64(p, at + 8, microseconds() * 1000);
    return DONE;
}
static enum status performance_state(const struct gpu *gpu, void *p, uint32_t size) { (void)gpu, (void)size; set(p, 0, 1); return DONE; }
static enum status remapped_rows(const struct gpu *gpu, void *p, uint32_t size) { // two of uncorrectable errors, one of correctable ones
    (void)gpu;
    memset(p, 0, size);
    set(p, 0, 3);
    for (unsigned i = 0; i < 3; i++) {
        char *row = (char *)p + 8 + 12 * i;
        set(row, 0, 1), set(row, 4, 1), set8(row, 8, i), set8(row, 10, i ? 1 : 2);
    }
    return DONE;
}
static enum status spare_rows(const struct gpu *gpu, void *p, uint32_t size) { (void)gpu; memset(p, 0, size); set(p, 0, 2558), set(p, 4, 2); return DONE; }
static enum status link_features(const struct gpu *gpu, void *p, uint32_t size) {
    (void)gpu;
    memset(p, 0, size);
    set(p, 0, 0xffff), memset((char *)p + 4, 7, 4), set(p, 8, (1 << LINKS) - 1), set(p, 12, (1 << LINKS) - 1);
    return DONE;
}
static enum status link_states(const struct gpu *gpu, void *p, uint32_t size) {
    (void)gpu;
    if (size != 5896) return REFUSED; // R555 has a layout that is not known
    memset(p, 0, size);
    set(p, 0, (1 << LINKS) - 1);
    for (unsigned i = 0; i < LINKS; i++) {
        char *link = (char *)p + 8 + 184 * i;
        set(link, 0, 0xffff), set8(link, 4, 1), set8(link, 5, 8), set(link, 8, i == DOWN ? 0 : 3), set8(link, 15, 7), set8(link, 16, 7);
        set(link, 36, 26562 * 8), set(link, 48, 26562000), set8(link, 56, 1), set8(link, 57, 3);
    }
    return DONE;
}
static enum status link_traffic(const struct gpu *gpu, void *p, uint32_t size) { // in units of 16 bytes
    (void)gpu;
    for (unsigned i = 0; i < LINKS; i++)
        for (unsigned k = 0; k < 4 && 48 + 32 * i <= size; k++)
            set64(p, 16 + 32 * i + 8 * k, get64(p, 8) >> i & 1 ? 1000000ull * (i + 1) + k : 0);
    return DONE;
}
static enum status link_errors(const struct gpu *gpu, void *p, uint32_t size) {
    (void)gpu;
    for (unsigned i = 0; i < LINKS; i++)
        for (unsigned k = 0; k < 32 && 16 + 264 * (i + 1) <= size; k++) set64(p, 24 + 264 * i + 8 * k, 100 * (i + 1) + k);
    return DONE;
}

static const struct { uint32_t command; answer *answer; } CONTROLS[] = {
    {0x101, versions},           {0x201, ids},                {0x202, about_id},           {0x205, about_id},
    {0x214, ids},                {0x215, nothing},            {0x216, nothing},            {0x21b, pci_of_id},
    {0x279, not_drained},        {0x289, nothing},            {0x28f, nothing},            {0x800201, class_list_before},
    {0x800289, zeros},           {0x80028e, zeros},           {0x800292, class_list},      {0x800294, brand},           {0x800202, pids},           {0x801102, no_features},
    {0x20800101, no_information_before}, {0x20800102, no_information},{0x20800110, name},          {0x2080013f, zeros},         {0x2080014a, uuid},
    {0x2080018d, pids},          {0x2080018e, pid_memory},    {0x20800301, nothing},       {0x20800406, time_of_gpu},
    {0x20801301, memory_before}, {0x20801303, memory},        {0x20801344, remapped_rows}, {0x20801347, spare_rows},
    {0x20801701, architecture},  {0x20801801, pci_ids},       {0x20802068, performance_state}, {0x20802096, pid_shares},
    {0x2080a068, performance_state}, {0x20803001, link_features}, {0x20803002, link_states},   {0x20803004, link_errors},   {0x20803015, link_traffic},
};

static uint32_t gpu_of_object(uint32_t client, uint32_t handle) { // each client numbers its objects itself
    for (uint32_t i = object_count; i-- > 0;) if (objects[i].handle == handle && objects[i].client == client) return objects[i].gpu;
    return 0;
}

static void control(void *request) {
    uint32_t object = get(request, 4), command = get(request, 8), size = get(request, 24);
    pthread_mutex_lock(&lock);
    uint32_t index = gpu_of_object(get(request, 0), object);
    pthread_mutex_unlock(&lock);
    struct gpu gpu = gpu_now(index);
    enum status status = REFUSED;
    if (command >> 16 == 0x2080 || command >> 16 == 0x80) { // about one GPU; without the lock, so that the others go on
        while (gpu.hang) usleep(100000), gpu = gpu_now(index);
        if (gpu.lost) status = GPU_IS_LOST;
    }
    for (unsigned i = 0; status == REFUSED && !gpu.refuse && i < sizeof CONTROLS / sizeof *CONTROLS; i++)
        if (CONTROLS[i].command == command) { status = CONTROLS[i].answer(&gpu, pointer(request, 16), size); break; }
    set(request, 28, status);
    if (node.calls) fprintf(node.calls, "%08x %u %x\n", command, size, status);
}

static void allocate(void *request, uint32_t size) {
    static uint32_t last = 0xc1d00000;
    const void *parameters = pointer(request, 16);
    pthread_mutex_lock(&lock);
    if (!get(request, 8)) set(request, 8, ++last);
    uint32_t gpu = get(request, 12) == 0x80 && parameters ? get(parameters, 0) : gpu_of_object(get(request, 0), get(request, 4));
    if (object_count < MOST_OBJECTS) objects[object_count].client = get(request, 0), objects[object_count].handle = get(request, 8), objects[object_count++].gpu = gpu;
    pthread_mutex_unlock(&lock);
    set(request, size == 48 ? 40 : 28, DONE);
}

// What the driver's library calls of libc.
static int device_number(const char *path) {
    if (!node.driver[0] || !path || strncmp(path, "/dev/nvidia", 11)) return -1;
    if (!strcmp(path + 11, "ctl")) return CONTROL_DEVICE;
    char *end;
    unsigned long number = strtoul(path + 11, &end, 10);
    return path[11] && !*end && number < node.gpus ? (int)number : -1;
}
static const char *in_node(const char *path, char *room, size_t size) {
    static const char *const REPLACED[] = {"/proc/driver/nvidia", "/sys/module/nvidia", "/proc/modules"};
    unsigned i = 0;
    while (path && i < 3 && strncmp(path, REPLACED[i], strlen(REPLACED[i]))) i++;
    if (!path || i == 3) return path;
    snprintf(room, size, "%s%s", node.folder, path);
    return room;
}
static int open_device(int number) {
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd >= 0 && fd < MOST_FILES) is_device[fd] = 1, minor_of[fd] = number;
    return fd;
}
#define OPENS(function)                                                                                    \
    int function(const char *path, int flags, ...) {                                                       \
        static int (*real)(const char *, int, ...);                                                        \
        char room[512];                                                                                    \
        mode_t mode = 0;                                                                                   \
        if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #function);                    \
        if (flags & (O_CREAT | __O_TMPFILE)) { va_list a; va_start(a, flags); mode = va_arg(a, mode_t); va_end(a); } \
        int number = device_number(path);                                                                  \
        return number >= 0 ? open_device(number) : real(in_node(path, room, sizeof room), flags, mode);    \
    }
OPENS(open)
OPENS(open64)
#define FOPENS(function)                                                                          \
    FILE *function(const char *path, const char *mode) {                                          \
        char room[512];                                                                           \
        if (device_number(path) >= 0) return fdopen(open_device(device_number(path)), "r+");      \
        return ((FILE * (*)(const char *, const char *))dlsym(RTLD_NEXT, #function))(in_node(path, room, sizeof room), mode); \
    }
FOPENS(fopen)
FOPENS(fopen64)
int access(const char *path, int mode) {
    char room[512];
    return device_number(path) >= 0 ? 0 : ((int (*)(const char *, int))dlsym(RTLD_NEXT, "access"))(in_node(path, room, sizeof room), mode);
}
int close(int fd) {
    if (fd >= 0 && fd < MOST_FILES) is_device[fd] = 0;
    return real_close(fd);
}
int fclose(FILE *file) {
    int fd = file ? fileno(file) : -1;
    if (fd >= 0 && fd < MOST_FILES) is_device[fd] = 0;
    return ((int (*)(FILE *))dlsym(RTLD_NEXT, "fclose"))(file);
}
static int as_device(struct stat *found, int number) {
    memset(found, 0, sizeof *found);
    found->st_mode = S_IFCHR | 0666;
    found->st_rdev = makedev(MAJOR, number);
    return 0;
}
int __xstat(int version, const char *path, struct stat *found) {
    char room[512];
    (void)version;
    return device_number(path) >= 0 ? as_device(found, device_number(path)) : stat(in_node(path, room, sizeof room), found);
}
int __xstat64(int version, const char *path, struct stat64 *found) { return __xstat(version, path, (struct stat *)found); }
int __fxstat(int version, int fd, struct stat *found) {
    (void)version;
    return fd >= 0 && fd < MOST_FILES && is_device[fd] ? as_device(found, minor_of[fd]) : fstat(fd, found);
}
int __fxstat64(int version, int fd, struct stat64 *found) { return __fxstat(version, fd, (struct stat *)found); }
int __xmknod(int version, const char *path, mode_t mode, dev_t *device) { (void)version, (void)path, (void)mode, (void)device; errno = EPERM; return -1; }

static int escape(int fd, uint32_t number, uint32_t size, void *p) {
    switch (number) {
    case 0x29: set(p, 12, DONE); return 0;        // free
    case 0x2a: control(p); return 0;
    case 0x2b: allocate(p, size); return 0;
    case 0x52: set(p, 8, 0), set(p, 12, NO_EVENT); return 0;
    case 200:                                     // the cards: 80 bytes each before R460
        memset(p, 0, size);
        for (uint32_t i = 0, each = size == 2560 ? 80 : 72; i < node.gpus && each * (i + 1) <= size; i++) {
            char *card = (char *)p + each * i;
            set8(card, 0, 1), set8(card, 8, bus_of(i)), set16(card, 12, 0x10de), set16(card, 14, node.architecture->device);
            set(card, each == 80 ? 20 : 16, id_of(i)), set(card, each == 80 ? 64 : 56, i);
        }
        return 0;
    case 201: case 209: case 212: return 0;       // registrations
    case 202: set(p, 0, 1); return 0;             // the page attribute table is supported
    case 206: case 207: set(p, 12, DONE); return 0;
    case 210: set(p, 4, 1); return 0;             // the library's version is right
    case 214: set64(p, 0, 128 << 20); return 0;
    case 215: memset(p, 0, size), set(p, 0, UINT32_MAX); return 0; // no NUMA node
    case 218: memset(p, 0, size); return 0;
    default: (void)fd; errno = EINVAL; return -1;
    }
}
int ioctl(int fd, unsigned long request, ...) {
    va_list arguments;
    va_start(arguments, request);
    void *p = va_arg(arguments, void *);
    va_end(arguments);
    if (fd < 0 || fd >= MOST_FILES || !is_device[fd])
        return ((int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl"))(fd, request, p);
    uint32_t number = _IOC_NR(request), size = _IOC_SIZE(request);
    // Bigger requests come inside of another one.
    return number == 211 ? escape(fd, get(p, 0), get(p, 4), pointer(p, 8)) : escape(fd, number, size, p);
}
