/* A file system without locks, as some network file systems are: preloaded, it makes every lock fail. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>

int flock(int descriptor, int operation) {
    (void)descriptor, (void)operation;
    errno = ENOSYS;
    return -1;
}

static int control(const char *name, int descriptor, int command, void *argument) {
    if (command == F_SETLK || command == F_SETLKW || command == F_GETLK) {
        errno = ENOSYS;
        return -1;
    }
    return ((int (*)(int, int, ...))dlsym(RTLD_NEXT, name))(descriptor, command, argument);
}

int fcntl(int descriptor, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    return control("fcntl", descriptor, command, argument);
}

int fcntl64(int descriptor, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    return control("fcntl64", descriptor, command, argument);
}
