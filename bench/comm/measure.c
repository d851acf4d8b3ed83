/* Times messages and collectives in the manner of the OSU micro-benchmarks: the same program over hotlease and MPI.
 *
 *     measure SECONDS BYTES_MAX [CASE...]
 *
 * Rank 0 prints a line of JSON for each case and size. Each rank times a collective from its call to its return, after
 * a barrier that is not timed; the result is the mean over the ranks of their medians. SECONDS is about how long each
 * size is measured. */
#define _POSIX_C_SOURCE 200809L
#include "measure.h"

#include <string.h>
#include <time.h>

#ifdef OVER_MPI
#include "over_mpi.h"
#else
#include "over_hotlease.h"
#endif

enum { SAMPLES_MAX = 20000, SAMPLES_MIN = 5, WARM = 3, WINDOW = 16 };

static double seconds; /* for each size */
static size_t bytes_max;
static int32_t *input, *output;
static int32_t samples[SAMPLES_MAX]; /* ns */

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void fail(const char* name, size_t bytes) {
    fprintf(stderr, "rank %d: %s of %zu bytes: the result is wrong\n", rank, name, bytes);
    exit(1);
}

static int by_value(const void* first, const void* second) {
    int32_t a = *(const int32_t*)first, b = *(const int32_t*)second;
    return (a > b) - (a < b);
}

/* Runs a case once. `count` is the number of integers in one rank's block. */
typedef void operation(int count);

static void do_barrier(int count) {
    (void)count;
    barrier();
}
static void do_broadcast(int count) { broadcast(output, count); }
static void do_gather(int count) { gather(input, output, count); }
static void do_scatter(int count) { scatter(input, output, count); }
static void do_allgather(int count) { allgather(input, output, count); }
static void do_alltoall(int count) { alltoall(input, output, count); }
static void do_reduce(int count) { reduce(input, output, count); }
static void do_allreduce(int count) { allreduce(input, output, count); }
static void do_reduce_scatter(int count) { reduce_scatter(input, output, count); }
static void do_scan(int count) { scan(input, output, count); }

static void do_ping(int count) {
    size_t size = (size_t)count * sizeof *input;
    if (rank == 0) {
        send_to(1, input, size);
        receive_from(1, output, size);
    } else if (rank == 1) {
        receive_from(0, output, size);
        send_to(0, input, size);
    }
}

static void do_stream(int count) {
    passing all[WINDOW];
    size_t size = (size_t)count * sizeof *input;
    if (rank > 1) return;
    for (int i = 0; i < WINDOW; i++) {
        /* All messages are received into the same memory: only the last message is checked. */
        if (rank == 0)
            start_send(&all[i], 1, input, size);
        else
            start_receive(&all[i], 0, output, size);
    }
    wait_for(all, WINDOW);
    if (rank == 0)
        receive_from(1, output, 4);
    else
        send_to(0, input, 4);
}

/* Element `at` of a block of `count` that rank `from` gives, and its sum over the ranks up to `last`. */
static int32_t given(int from, int at) { return (from + 1) * 7 + at % 1000; }
static int32_t summed(int last, int at) { return 7 * (last + 1) * (last + 2) / 2 + (last + 1) * (at % 1000); }

enum kind { ONLY_TIME, PING, FROM_ROOT, GATHERED, SCATTERED, ALL_GATHERED, EXCHANGED, REDUCED, ALL_REDUCED, MINE_REDUCED, SCANNED };

static const struct test {
    const char* name;
    operation* run;
    enum kind kind;
    int blocks; /* 1: each rank's memory has a block for every rank */
} tests[] = {
    {"latency", do_ping, PING, 0},
    {"bandwidth", do_stream, ONLY_TIME, 0},
    {"barrier", do_barrier, ONLY_TIME, 0},
    {"broadcast", do_broadcast, FROM_ROOT, 0},
    {"gather", do_gather, GATHERED, 1},
    {"scatter", do_scatter, SCATTERED, 1},
    {"allgather", do_allgather, ALL_GATHERED, 1},
    {"alltoall", do_alltoall, EXCHANGED, 1},
    {"reduce", do_reduce, REDUCED, 0},
    {"allreduce", do_allreduce, ALL_REDUCED, 0},
    {"reduce_scatter", do_reduce_scatter, MINE_REDUCED, 1},
    {"scan", do_scan, SCANNED, 0},
};

static void fill(const struct test* test, int count) {
    int blocks = test->blocks ? ranks : 1;
    for (int block = 0; block < blocks; block++)
        for (int i = 0; i < count; i++) input[block * count + i] = given(rank, test->kind == MINE_REDUCED ? i + block : i);
    memset(output, 0, (size_t)blocks * (size_t)count * sizeof *output);
    if (test->kind == FROM_ROOT && rank == 0) memcpy(output, input, (size_t)count * sizeof *output);
}

static int is_right(const struct test* test, int count) {
    for (int i = 0; i < count; i += count > 64 ? count / 64 : 1) {
        switch (test->kind) {
            case ONLY_TIME: return 1;
            case PING:
                if (rank < 2 && output[i] != given(1 - rank, i)) return 0;
                break;
            case FROM_ROOT:
            case SCATTERED:
                if (output[i] != given(0, i)) return 0;
                break;
            case GATHERED:
                if (rank > 0) return 1; /* fall through */
            case ALL_GATHERED:
            case EXCHANGED:
                for (int from = 0; from < ranks; from++)
                    if (output[from * count + i] != given(from, i)) return 0;
                break;
            case REDUCED:
                if (rank > 0) return 1; /* fall through */
            case ALL_REDUCED:
                if (output[i] != summed(ranks - 1, i)) return 0;
                break;
            case MINE_REDUCED:
                if (output[i] != summed(ranks - 1, i + rank)) return 0;
                break;
            case SCANNED:
                if (output[i] != summed(rank, i)) return 0;
                break;
        }
    }
    return 1;
}

static void measure(const struct test* test, size_t bytes) {
    int count = (int)(bytes / sizeof *input);
    fill(test, count);
    test->run(count);
    if (!is_right(test, count)) fail(test->name, bytes);
    int64_t began = now();
    for (int i = 0; i < WARM; i++) {
        barrier();
        test->run(count);
    }
    int32_t planned = 0;
    if (rank == 0) {
        double fit = seconds * 1e9 * WARM / (double)(now() - began + 1);
        planned = fit > SAMPLES_MAX ? SAMPLES_MAX : fit < SAMPLES_MIN ? SAMPLES_MIN : (int32_t)fit;
    }
    broadcast(&planned, 1);
    for (int i = 0; i < planned; i++) {
        barrier();
        int64_t start = now();
        test->run(count);
        int64_t took = now() - start;
        samples[i] = took > INT32_MAX ? INT32_MAX : (int32_t)took;
    }
    qsort(samples, (size_t)planned, sizeof *samples, by_value);
    int32_t mine[2] = {samples[planned / 2] / ranks, samples[planned * 99 / 100] / ranks}, mean[2] = {0, 0};
    reduce(mine, mean, 2);
    if (rank > 0) return;
    double p50 = mean[0], p99 = mean[1];
    if (test->kind == PING) { /* one way, between the two ranks that take part */
        p50 = samples[planned / 2] / 2.0;
        p99 = samples[planned * 99 / 100] / 2.0;
    }
    printf("{\"case\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"samples\": %d, \"p50_ns\": %.0f, \"p99_ns\": %.0f", test->name,
           ranks, bytes, planned, p50, p99);
    if (test->run == do_stream) printf(", \"bytes_per_second\": %.0f", (double)bytes * WINDOW * 1e9 / samples[planned / 2]);
    printf("}\n");
    fflush(stdout);
}

static int is_chosen(const char* name, int argc, char** argv) {
    if (argc <= 3) return 1;
    for (int i = 3; i < argc; i++)
        if (strcmp(name, argv[i]) == 0) return 1;
    return 0;
}

int main(int argc, char** argv) {
    begin(&argc, &argv);
    if (argc < 3 || (seconds = atof(argv[1])) <= 0 || (bytes_max = (size_t)atoll(argv[2])) < 4 || ranks < 2) {
        fprintf(stderr, "usage: measure SECONDS BYTES_MAX [CASE...], at 2 ranks or more\n");
        return 2;
    }
    /* The blocks have 20,000 bytes, 5,000 integers, as in the paper. */
    size_t room = (bytes_max > 20000 ? bytes_max : 20000) * 2 + 64;
    size_t sizes[64], count = 0;
    for (size_t bytes = 4; bytes <= bytes_max; bytes *= bytes < 8 ? 2 : 8) sizes[count++] = bytes;
    input = malloc(room * (size_t)ranks);
    output = malloc(room * (size_t)ranks);
    if (input == NULL || output == NULL) return 1;
    for (size_t at = 0; at < sizeof tests / sizeof *tests; at++) {
        const struct test* test = &tests[at];
        if (!is_chosen(test->name, argc, argv)) continue;
        if (test->kind == ONLY_TIME && test->run == do_barrier) {
            measure(test, 4);
            continue;
        }
        for (size_t i = 0; i < count; i++) {
            /* All blocks together are as long as the message of the other cases. */
            size_t bytes = test->blocks ? sizes[i] / (size_t)ranks / 4 * 4 : sizes[i];
            if (bytes >= 4) measure(test, bytes);
        }
        if (test->kind == GATHERED || test->kind == SCATTERED) measure(test, 20000);
    }
    free(input);
    free(output);
    end();
    return 0;
}
