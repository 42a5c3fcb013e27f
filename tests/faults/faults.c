/* Makes the n-th write, truncation, sync, rename or unlink below one folder go wrong. Preloaded into the process under
 * test, it sits below Python and SQLite alike. Disarmed until `faults_arm` is called. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum mode { COUNT, FULL, ERROR, TORN, KILLED };

static char folder[4096];
static enum mode mode = COUNT;
static long nth, counted, counting; /* counting: the shim is armed */

void faults_arm(const char *path, int how, long n) {
    snprintf(folder, sizeof folder, "%s", path);
    mode = (enum mode)how;
    nth = n;
    counted = 0;
    counting = 1;
}

long faults_counted(void) { return counted; }

static int below(const char *path) { return path && !strncmp(path, folder, strlen(folder)); }

static int file_below(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return below(path);
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* What to do with a call: 0 let it through, -1 fail with errno set, 1 do half of it. */
static int fate(int watched, int is_write) {
    if (!counting || !watched) return 0;
    long now = ++counted;
    if (now < nth || mode == COUNT) return 0;
    if (now > nth) { /* a full disk stays full, but what needs no room works */
        if (mode == ERROR || !is_write) return 0;
        errno = ENOSPC;
        return -1;
    }
    if (mode == KILLED && !is_write) die();
    if ((mode == KILLED || mode == TORN) && is_write) return 1;
    errno = mode == ERROR ? EIO : ENOSPC;
    return -1;
}

#define REAL(name, type) ((type)dlsym(RTLD_NEXT, name))

#define WRITES(name, arguments, passed)                                                                     \
    ssize_t name arguments {                                                                                \
        int saved = errno, found = fate(file_below(fd), 1);                                              \
        if (found < 0) return -1;                                                                           \
        errno = saved;                                                                                      \
        if (found > 0) size /= 2;                                                                           \
        ssize_t done = REAL(#name, ssize_t(*) arguments) passed;                                            \
        if (found > 0 && mode == KILLED) die();                                                             \
        return done;                                                                                        \
    }

WRITES(write, (int fd, const void *data, size_t size), (fd, data, size))
WRITES(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRITES(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))

#define CALLS(name, arguments, passed, watched)                                                             \
    int name arguments {                                                                                    \
        int saved = errno;                                                                                  \
        if (fate(watched, 0) < 0) return -1;                                                                \
        errno = saved;                                                                                      \
        return REAL(#name, int (*) arguments) passed;                                                       \
    }

CALLS(ftruncate, (int fd, off_t size), (fd, size), file_below(fd))
CALLS(ftruncate64, (int fd, off64_t size), (fd, size), file_below(fd))
CALLS(fsync, (int fd), (fd), file_below(fd))
CALLS(fdatasync, (int fd), (fd), file_below(fd))
CALLS(rename, (const char *from, const char *to), (from, to), below(from))
CALLS(renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), below(from))
CALLS(unlink, (const char *path), (path), below(path))
CALLS(unlinkat, (int fd, const char *path, int flags), (fd, path, flags), below(path))
