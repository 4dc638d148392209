/* Loaded before the C library of a process, it moves the process's clock and lets its disk fail.

   CHAOS_CONTROL names a file of three doubles that may change at any time: seconds to add to the clock; state of the disk (0: works,
   1: full, 2: read-only); seconds that each operation on the disk takes. CHAOS_DISK lists the folders of this disk, separated by
   colons. Reading always works. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAX_FOLDERS 8

static volatile const double *control;
static char *folders[MAX_FOLDERS];
static unsigned int writes;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    return dlsym(RTLD_NEXT, name);
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CONTROL"), *disk = getenv("CHAOS_DISK");
    int descriptor = path ? REAL(open)(path, O_RDONLY | O_CLOEXEC) : -1;
    if (descriptor < 0)
        return;
    void *mapped = mmap(NULL, 3 * sizeof(double), PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    int n = 0;
    for (char *part = strtok(strdup(disk ? disk : ""), ":"); part && n < MAX_FOLDERS - 1; part = strtok(NULL, ":"))
        folders[n++] = part;
    if (mapped != MAP_FAILED)
        control = mapped;
}

/* Return the error of an operation on this path, or 0; waits if the disk is slow. */
static int fault(const char *path) {
    if (!control || (control[1] == 0 && control[2] == 0) || !path)
        return 0;
    char absolute[2 * PATH_MAX] = "";
    if (path[0] != '/' && getcwd(absolute, PATH_MAX))
        strcat(absolute, "/");
    strncat(absolute, path, PATH_MAX - 1);
    for (int i = 0; folders[i]; i++)
        if (!strncmp(absolute, folders[i], strlen(folders[i]))) {
            if (control[2] > 0)
                usleep((useconds_t)(control[2] * 1e6));
            return control[1] == 1 ? ENOSPC : control[1] == 2 ? EROFS : 0;
        }
    return 0;
}

static int fault_of(int descriptor) {
    if (!control || (control[1] == 0 && control[2] == 0))
        return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    return fault(path);
}

#define FAIL_IF(condition)                                                                                                         \
    do {                                                                                                                           \
        int error = (condition);                                                                                                   \
        if (error) {                                                                                                               \
            errno = error;                                                                                                         \
            return -1;                                                                                                             \
        }                                                                                                                          \
    } while (0)

/* A disk that has just become full takes the first part of some writes. */
static size_t part(int error, size_t count) {
    return error == ENOSPC && count > 1 && ++writes % 4 == 0 ? count / 2 : 0;
}

ssize_t write(int descriptor, const void *data, size_t count) {
    int error = fault_of(descriptor);
    size_t some = part(error, count);
    FAIL_IF(some ? 0 : error);
    return REAL(write)(descriptor, data, some ? some : count);
}

ssize_t pwrite(int descriptor, const void *data, size_t count, off_t at) {
    FAIL_IF(fault_of(descriptor));
    return REAL(pwrite)(descriptor, data, count, at);
}

ssize_t pwrite64(int descriptor, const void *data, size_t count, off64_t at) {
    FAIL_IF(fault_of(descriptor));
    return REAL(pwrite64)(descriptor, data, count, at);
}

ssize_t writev(int descriptor, const struct iovec *data, int count) {
    FAIL_IF(fault_of(descriptor));
    return REAL(writev)(descriptor, data, count);
}

#define OPEN(name)                                                                                                                 \
    int name(const char *path, int flags, ...) {                                                                                   \
        va_list more;                                                                                                              \
        va_start(more, flags);                                                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                                    \
        va_end(more);                                                                                                              \
        if (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))                                                                       \
            FAIL_IF(fault(path));                                                                                                  \
        return REAL(name)(path, flags, mode);                                                                                      \
    }
OPEN(open)
OPEN(open64)

#define OPEN_AT(name)                                                                                                              \
    int name(int folder, const char *path, int flags, ...) {                                                                       \
        va_list more;                                                                                                              \
        va_start(more, flags);                                                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                                    \
        va_end(more);                                                                                                              \
        if (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))                                                                       \
            FAIL_IF(fault(path));                                                                                                  \
        return REAL(name)(folder, path, flags, mode);                                                                              \
    }
OPEN_AT(openat)
OPEN_AT(openat64)

int mkdir(const char *path, mode_t mode) {
    FAIL_IF(fault(path));
    return REAL(mkdir)(path, mode);
}

/* A full disk can still rename and remove. */
static int forbids(const char *path) {
    int error = fault(path);
    return error == ENOSPC ? 0 : error;
}

int rename(const char *from, const char *to) {
    FAIL_IF(forbids(to));
    return REAL(rename)(from, to);
}

int unlink(const char *path) {
    FAIL_IF(forbids(path));
    return REAL(unlink)(path);
}

int unlinkat(int folder, const char *path, int flags) {
    FAIL_IF(path[0] == '/' ? forbids(path) : folder >= 0 && fault_of(folder) == EROFS ? EROFS : 0);
    return REAL(unlinkat)(folder, path, flags);
}

int rmdir(const char *path) {
    FAIL_IF(forbids(path));
    return REAL(rmdir)(path);
}

int fsync(int descriptor) {
    FAIL_IF(fault_of(descriptor));
    return REAL(fsync)(descriptor);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int status = REAL(clock_gettime)(which, now);
    if (!status && control && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        double seconds = control[0];
        now->tv_sec += (time_t)seconds;
    }
    return status;
}

int gettimeofday(struct timeval *now, void *zone) {
    int status = REAL(gettimeofday)(now, zone);
    if (!status && control)
        now->tv_sec += (time_t)control[0];
    return status;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into)
        *into = now.tv_sec;
    return now.tv_sec;
}
