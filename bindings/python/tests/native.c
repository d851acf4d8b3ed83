/* Functions for test_native.py; each has one property that a test checks. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <hotlease/function.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Doubles each double; the plain interface. */
HOTLEASE_PLAIN_FUNCTION(twice)
{
    for (uint32_t i = 0; i < size / sizeof(double); i++)
        ((double*)out)[i] = 2 * ((const double*)in)[i];
    return size;
}

/* Doubles each double; the context interface, which takes any size. */
HOTLEASE_FUNCTION(twice_large)
{
    *produced = size;
    if (size <= capacity)
        for (uint64_t i = 0; i < size / sizeof(double); i++)
            ((double*)out)[i] = 2 * ((const double*)in)[i];
    return 0;
}

HOTLEASE_IDEMPOTENT(echo);
HOTLEASE_FUNCTION(echo)
{
    *produced = size;
    if (size <= capacity && size > 0)
        memcpy(out, in, size);
    return 0;
}

HOTLEASE_PLAIN_FUNCTION(sum)
{
    double total = 0;
    for (uint32_t i = 0; i < size / sizeof(double); i++)
        total += ((const double*)in)[i];
    *(double*)out = total;
    return sizeof total;
}

/* Returns the positive doubles: fewer than it gets. */
HOTLEASE_FUNCTION(positive)
{
    uint64_t found = 0;
    for (uint64_t i = 0; i < size / sizeof(double); i++)
        if (((const double*)in)[i] > 0)
            ((double*)out)[found++] = ((const double*)in)[i];
    *produced = found * sizeof(double);
    return 0;
}

/* Returns the distances of input, output and scratch memory from a multiple of 64, the capacity of the output, the
 * slot's number, and whether there is a deadline. */
HOTLEASE_FUNCTION(surroundings)
{
    (void)size;
    uint64_t seen[] = {(uintptr_t)in % 64, (uintptr_t)out % 64, (uintptr_t)context->scratch % 64, capacity,
                       context->slot, context->deadline_ns != 0};
    memcpy(out, seen, sizeof seen);
    *produced = sizeof seen;
    return 0;
}

HOTLEASE_FUNCTION(fail)
{
    (void)context, (void)in, (void)size;
    return hotlease_fail(42, "no luck today", out, capacity, produced);
}

/* Fails twice in each process, then returns the number of its calls. */
HOTLEASE_FUNCTION(third_time)
{
    static int64_t calls = 0;
    if (++calls % 3 != 0)
        return hotlease_fail(EAGAIN, "not yet", out, capacity, produced);
    *(int64_t*)out = calls;
    *produced = sizeof calls;
    return 0;
}

/* Counter of the two functions below, in this copy of the library. */
static int64_t counted = 0;
HOTLEASE_PLAIN_FUNCTION(count)
{
    *(int64_t*)out = ++counted;
    return sizeof counted;
}
HOTLEASE_PLAIN_FUNCTION(count_too)
{
    *(int64_t*)out = ++counted;
    return sizeof counted;
}

/* Needs 16 bytes for each byte of input. */
HOTLEASE_FUNCTION(grow)
{
    *produced = 16 * size;
    if (*produced <= capacity)
        memset(out, 1, *produced);
    return 0;
}

HOTLEASE_PLAIN_FUNCTION(crash)
{
    fprintf(stderr, "last words\n");
    raise(SIGSEGV);
    return 0;
}

/* Records its run in the file that its input names, and crashes. */
HOTLEASE_IDEMPOTENT(mark_and_crash);
HOTLEASE_PLAIN_FUNCTION(mark_and_crash)
{
    char path[4096] = {0};
    memcpy(path, in, size < sizeof path ? size : sizeof path - 1);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file < 0 || write(file, "x", 1) != 1)
        return 0;
    raise(SIGSEGV);
    return 0;
}

/* Runs until it is told to stop. */
HOTLEASE_FUNCTION(obedient)
{
    (void)in, (void)size;
    while (!hotlease_cancelled(context))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return hotlease_fail(ECANCELED, "told to stop", out, capacity, produced);
}

/* Runs for ever. */
HOTLEASE_PLAIN_FUNCTION(stubborn)
{
    for (;;)
        pause();
    return 0;
}

/* Forks; the child returns from the function, too. */
HOTLEASE_PLAIN_FUNCTION(forks)
{
    pid_t child = fork();
    *(int64_t*)out = child == 0 ? 1 : 0;
    if (child > 0) {
        int status = -1;
        waitpid(child, &status, 0);
        *(int64_t*)out = WIFEXITED(status) ? 100 + WEXITSTATUS(status) : -1;
    }
    return sizeof(int64_t);
}

HOTLEASE_PLAIN_FUNCTION(pid)
{
    *(int64_t*)out = getpid();
    return sizeof(int64_t);
}
