/* All of hotlease.h but its buffers, against a running platform: client path/to/libtest_functions.so */

#define _POSIX_C_SOURCE 200809L

#include <hotlease/hotlease.h>

#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static hotlease_invoker* invoker;

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static hotlease_function* find(const char* name, const hotlease_function_options* options)
{
    hotlease_function* function = NULL;
    hotlease_error* error = NULL;
    CHECK(hotlease_function_find(invoker, name, options, &function, &error) == HOTLEASE_OK);
    if (function == NULL) {
        printf("    %s: %s\n", name, hotlease_error_message(error));
        exit(1);
    }
    return function;
}

static void calls(void)
{
    hotlease_function* echo = find("echo", NULL);
    static char in[10000], out[10000];
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (char)i;
    /* Sizes around every border: inline, line, ring entry, staged. */
    const size_t sizes[] = {0, 1, 8, 31, 32, 33, 64, 127, 128, 129, 4095, 4096, 4097, 10000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t size = sizes[i], got = 99;
        memset(out, 0, sizeof out);
        CHECK(hotlease_invoke(echo, in, size, out, sizeof out, &got, NULL) == HOTLEASE_OK);
        CHECK(got == size && memcmp(in, out, size) == 0);
        CHECK(size == sizeof out || out[size] == 0);
    }
    /* NULL is allowed for empty memory, and for a size that the caller does not need. */
    CHECK(hotlease_invoke(echo, NULL, 0, NULL, 0, NULL, NULL) == HOTLEASE_OK);
    hotlease_error* error = NULL;
    CHECK(hotlease_invoke(echo, NULL, 5, out, sizeof out, NULL, &error) == HOTLEASE_INVALID_ARGUMENT);
    hotlease_error_free(error);
    error = NULL;
    CHECK(hotlease_invoke(echo, in, 5, NULL, 5, NULL, &error) == HOTLEASE_INVALID_ARGUMENT);
    hotlease_error_free(error);
    hotlease_function_free(echo);

    /* Aligned as function.h promises, however the bytes travel: inline, in the ring, staged. */
    hotlease_function* alignment = find("alignment", NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t capacities[] = {8, 4096, 10000};
        for (size_t c = 0; c < 3; c++) {
            size_t got = 0;
            unsigned off[2] = {1, 1};
            memset(out, 1, sizeof out);
            CHECK(hotlease_invoke(alignment, in, sizes[i], out, capacities[c], &got, NULL) == HOTLEASE_OK);
            memcpy(off, out, sizeof off);
            CHECK(got == sizeof off && off[0] == 0 && off[1] == 0);
        }
    }
    hotlease_function_free(alignment);

    hotlease_function* plain = find("plain_echo", NULL);
    size_t got = 0;
    CHECK(hotlease_invoke(plain, "plain", 5, out, sizeof out, &got, NULL) == HOTLEASE_OK);
    CHECK(got == 5 && memcmp(out, "plain", 5) == 0);
    hotlease_function_free(plain);

    hotlease_function* context = find("check_context", NULL);
    error = NULL;
    CHECK(hotlease_invoke(context, NULL, 0, out, sizeof out, &got, &error) == HOTLEASE_OK);
    if (error != NULL)
        printf("    %s\n", hotlease_error_message(error));
    hotlease_error_free(error);
    hotlease_function_free(context);
}

static void failures(void)
{
    hotlease_error* error = NULL;
    hotlease_function* none = NULL;
    CHECK(hotlease_function_find(invoker, "ekho", NULL, &none, &error) == HOTLEASE_UNKNOWN_FUNCTION);
    CHECK(none == NULL && strstr(hotlease_error_message(error), "echo") != NULL);
    hotlease_error_free(error);

    /* The function's own error: its number, and its message in `out`. */
    hotlease_function* fail = find("fail", NULL);
    char out[64];
    size_t size = 0;
    error = NULL;
    CHECK(hotlease_invoke(fail, "no", 2, out, sizeof out, &size, &error) == HOTLEASE_FUNCTION_FAILED);
    CHECK(size == 8 && memcmp(out, "as asked", 8) == 0);
    CHECK(hotlease_error_code(error) == 7 && hotlease_error_ran(error) == HOTLEASE_RAN_YES);
    CHECK(hotlease_error_billed(error) && !hotlease_error_retryable(error));
    CHECK(strstr(hotlease_error_message(error), "as asked") != NULL);
    hotlease_error_free(error);
    CHECK(hotlease_invoke(fail, "ok", 2, out, sizeof out, &size, NULL) == HOTLEASE_OK && size == 0);
    hotlease_function_free(fail);

    /* Too little room: the error says how much is needed. */
    hotlease_function* echo = find("echo", NULL);
    error = NULL;
    CHECK(hotlease_invoke(echo, "0123456789", 10, out, 4, &size, &error) == HOTLEASE_OUTPUT_TOO_LARGE);
    CHECK(hotlease_error_needed(error) == 10 && hotlease_error_ran(error) == HOTLEASE_RAN_YES);
    hotlease_error_free(error);
    hotlease_function_free(echo);

    /* A timeout. */
    hotlease_function_options hurried = {.struct_size = sizeof hurried, .timeout_us = 50000};
    hotlease_function* wait_ms = find("wait_ms", &hurried);
    const unsigned ms = 10000;
    error = NULL;
    CHECK(hotlease_invoke(wait_ms, &ms, sizeof ms, out, sizeof out, &size, &error) ==
          HOTLEASE_DEADLINE_EXCEEDED);
    CHECK(hotlease_error_ran(error) != HOTLEASE_RAN_NO);
    hotlease_error_free(error);
    hotlease_function_free(wait_ms);

    /* Options of a later version are refused, not cut. */
    hotlease_function_options strange = {.struct_size = 4096};
    error = NULL;
    CHECK(hotlease_function_find(invoker, "echo", &strange, &none, &error) == HOTLEASE_INVALID_ARGUMENT);
    CHECK(strstr(hotlease_error_message(error), "struct_size") != NULL);
    hotlease_error_free(error);
}

static void futures(void)
{
    hotlease_function* increment = find("increment", NULL);
    enum { COUNT = 200 }; /* more than fit into the queue at once */
    hotlease_invocation* invocations[COUNT];
    for (unsigned i = 0; i < COUNT; i++) {
        invocations[i] = NULL;
        CHECK(hotlease_submit(increment, &i, sizeof i, &invocations[i], NULL) == HOTLEASE_OK);
    }
    for (unsigned i = COUNT; i-- > 0;) { /* in another order */
        unsigned out = 0;
        size_t size = 0;
        CHECK(hotlease_wait(invocations[i], &out, sizeof out, &size, NULL) == HOTLEASE_OK);
        CHECK(size == sizeof out && out == i + 1);
    }
    hotlease_function_free(increment);

    hotlease_function* wait_ms = find("wait_ms", NULL);
    const unsigned ms = 500;
    hotlease_invocation* slow = NULL;
    const double begun = now_ms();
    CHECK(hotlease_submit(wait_ms, &ms, sizeof ms, &slow, NULL) == HOTLEASE_OK);
    const int is_early = !hotlease_is_done(slow) && !hotlease_wait_for(slow, 1000);
    CHECK(is_early || now_ms() - begun >= ms); /* this thread may have been stopped meanwhile */
    CHECK(hotlease_wait_for(slow, 10000000));
    CHECK(hotlease_is_done(slow));
    CHECK(hotlease_wait_for(slow, 0));
    CHECK(hotlease_wait(slow, NULL, 0, NULL, NULL) == HOTLEASE_OK);

    /* A full queue: try_submit says so at once. */
    const unsigned brief = 5;
    hotlease_status status = HOTLEASE_OK;
    hotlease_invocation* queued[4096];
    size_t count = 0;
    while (count < 4096 && status == HOTLEASE_OK) {
        queued[count] = NULL;
        status = hotlease_try_submit(wait_ms, &brief, sizeof brief, &queued[count], NULL);
        if (status == HOTLEASE_OK)
            count++;
    }
    CHECK(status == HOTLEASE_BUSY && count > 0 && count < 4096);
    for (size_t i = 0; i < count; i++)
        hotlease_invocation_free(queued[i]); /* the results are not needed any more */
    hotlease_function_free(wait_ms);
}

struct results {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned sum, arrived, failed;
};

static void arrive(void* user, hotlease_status status, const void* out, size_t out_size,
                   const hotlease_error* error)
{
    struct results* results = user;
    pthread_mutex_lock(&results->lock);
    results->arrived++;
    if (status == HOTLEASE_OK && out_size == sizeof(unsigned) && error == NULL)
        results->sum += *(const unsigned*)out;
    if (status == HOTLEASE_FUNCTION_FAILED && hotlease_error_code(error) == 7 && out_size == 8)
        results->failed++;
    pthread_cond_signal(&results->changed);
    pthread_mutex_unlock(&results->lock);
}

static void callbacks(void)
{
    struct results results = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0};
    hotlease_function* increment = find("increment", NULL);
    hotlease_function* fail = find("fail", NULL);
    for (unsigned i = 0; i < 10; i++)
        CHECK(hotlease_submit_then(increment, &i, sizeof i, arrive, &results, NULL) == HOTLEASE_OK);
    CHECK(hotlease_submit_then(fail, "no", 2, arrive, &results, NULL) == HOTLEASE_OK);
    /* On an invocation that was submitted before. */
    const unsigned nine = 9;
    hotlease_invocation* invocation = NULL;
    CHECK(hotlease_submit(increment, &nine, sizeof nine, &invocation, NULL) == HOTLEASE_OK);
    CHECK(hotlease_then(invocation, arrive, &results, NULL) == HOTLEASE_OK);

    pthread_mutex_lock(&results.lock);
    while (results.arrived < 12)
        pthread_cond_wait(&results.changed, &results.lock);
    pthread_mutex_unlock(&results.lock);
    CHECK(results.sum == 65 && results.failed == 1); /* 1 + ... + 10, and 10 */
    hotlease_function_free(increment);
    hotlease_function_free(fail);
}

static void maps(void)
{
    hotlease_function* increment = find("increment", NULL);
    enum { COUNT = 1000 };
    static unsigned in[COUNT], out[COUNT];
    static hotlease_item items[COUNT];
    for (unsigned i = 0; i < COUNT; i++) {
        in[i] = i;
        items[i] = (hotlease_item){.in = &in[i], .in_size = 4, .out = &out[i], .out_capacity = 4};
    }
    CHECK(hotlease_map(increment, items, COUNT, NULL) == HOTLEASE_OK);
    unsigned right = 0;
    for (unsigned i = 0; i < COUNT; i++)
        right += items[i].status == HOTLEASE_OK && items[i].out_size == 4 && out[i] == i + 1;
    CHECK(right == COUNT);
    CHECK(hotlease_map(increment, NULL, 0, NULL) == HOTLEASE_OK);
    CHECK(hotlease_map(increment, NULL, 1, NULL) == HOTLEASE_INVALID_ARGUMENT);
    hotlease_function_free(increment);

    /* One that fails does not stop the others. */
    hotlease_function* fail = find("fail", NULL);
    char message[16];
    hotlease_item mixed[3] = {{.in = "ok", .in_size = 2},
                              {.in = "no", .in_size = 2, .out = message, .out_capacity = sizeof message},
                              {.in = "ok", .in_size = 2}};
    hotlease_error* error = NULL;
    CHECK(hotlease_map(fail, mixed, 3, &error) == HOTLEASE_FUNCTION_FAILED);
    CHECK(mixed[0].status == HOTLEASE_OK && mixed[2].status == HOTLEASE_OK);
    CHECK(mixed[1].status == HOTLEASE_FUNCTION_FAILED && mixed[1].out_size == 8);
    CHECK(hotlease_error_code(error) == 7);
    hotlease_error_free(error);
    hotlease_function_free(fail);
}

static void* hammer(void* function)
{
    long wrong = 0;
    for (unsigned i = 0; i < 20000; i++) {
        unsigned out = 0;
        size_t size = 0;
        wrong += hotlease_invoke(function, &i, sizeof i, &out, sizeof out, &size, NULL) != HOTLEASE_OK ||
                 out != i + 1;
    }
    return (void*)wrong;
}

static void threads(void)
{
    hotlease_function* increment = find("increment", NULL);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, hammer, increment);
    for (int i = 0; i < 4; i++) {
        void* wrong = NULL;
        pthread_join(threads[i], &wrong);
        CHECK(wrong == NULL);
    }
    hotlease_function_free(increment);
}

static void plans(void)
{
    hotlease_function* wait_ms = find("wait_ms", NULL);
    const unsigned ms = 4;
    const uint64_t local_ns = 4000000;
    hotlease_model* model = NULL;
    CHECK(hotlease_model_learn(wait_ms, &ms, sizeof ms, &model, NULL) == HOTLEASE_OK);

    /* The slot takes about as long for a task as this thread (longer on a busy host, but not 9 times). */
    hotlease_plan plan = {.struct_size = sizeof plan};
    CHECK(hotlease_model_plan(model, 100, local_ns, &plan, NULL) == HOTLEASE_OK);
    CHECK(plan.local + plan.remote == 100 && plan.remote >= 10 && plan.remote <= 75);
    CHECK(plan.predicted_ns >= plan.local * local_ns);
    /* Tasks that take no time here are kept. */
    CHECK(hotlease_model_plan(model, 100, 1, &plan, NULL) == HOTLEASE_OK);
    CHECK(plan.local == 100 && plan.remote == 0);
    CHECK(hotlease_model_plan(model, 0, local_ns, &plan, NULL) == HOTLEASE_OK);
    CHECK(plan.local == 0 && plan.remote == 0 && plan.predicted_ns == 0);
    CHECK(hotlease_model_plan(model, UINT64_MAX, UINT64_MAX, &plan, NULL) == HOTLEASE_OK);
    CHECK(plan.local + plan.remote == UINT64_MAX);

    hotlease_plan later = {.struct_size = 4096};
    CHECK(hotlease_model_plan(model, 1, 1, &later, NULL) == HOTLEASE_INVALID_ARGUMENT);
    hotlease_model_free(model);
    hotlease_function_free(wait_ms);

    /* A function that fails teaches nothing. */
    hotlease_function* fail = find("fail", NULL);
    hotlease_error* error = NULL;
    model = NULL;
    CHECK(hotlease_model_learn(fail, "no", 2, &model, &error) == HOTLEASE_FUNCTION_FAILED);
    CHECK(model == NULL && hotlease_error_code(error) == 7);
    hotlease_error_free(error);
    hotlease_function_free(fail);
}

/* Without libfabric, only the rejection can be tested. */
static void transports(const hotlease_code* code)
{
    hotlease_options options = {.struct_size = sizeof options, .transport = "carrier pigeon"};
    hotlease_invoker* over = NULL;
    hotlease_error* error = NULL;
    CHECK(hotlease_allocate(code, &options, &over, &error) == HOTLEASE_UNAVAILABLE);
    CHECK(over == NULL && strstr(hotlease_error_message(error), "no way to the worker") != NULL);
    hotlease_error_free(error);
    error = NULL;

    options.transport = "ofi";
    const hotlease_status status = hotlease_allocate(code, &options, &over, &error);
    if (status == HOTLEASE_OK) {
        CHECK(strcmp(hotlease_invoker_transport(over), "shm") != 0);
        hotlease_function* echo = NULL;
        char out[4];
        size_t size = 0;
        CHECK(hotlease_function_find(over, "echo", NULL, &echo, NULL) == HOTLEASE_OK);
        CHECK(hotlease_invoke(echo, "ofi", 4, out, sizeof out, &size, NULL) == HOTLEASE_OK);
        CHECK(size == 4 && strcmp(out, "ofi") == 0);
        hotlease_function_free(echo);
        CHECK(hotlease_deallocate(over, NULL, NULL) == HOTLEASE_OK);
        hotlease_invoker_free(over);
    } else {
        printf("    skipped: %s\n", hotlease_error_message(error));
        CHECK(status == HOTLEASE_UNAVAILABLE);
        hotlease_error_free(error);
    }

    /* A program from before this option shows that by its struct_size, and behaves as before. */
    options.struct_size = offsetof(hotlease_options, transport);
    options.transport = "carrier pigeon";
    CHECK(hotlease_allocate(code, &options, &over, NULL) == HOTLEASE_OK);
    CHECK(strcmp(hotlease_invoker_transport(over), "shm") == 0);
    CHECK(hotlease_deallocate(over, NULL, NULL) == HOTLEASE_OK);
    hotlease_invoker_free(over);
}

/* Returns how often the function has been called, by leases of this state. */
static uint64_t visits(const hotlease_code* code, const hotlease_options* options)
{
    hotlease_invoker* kept = NULL;
    hotlease_function* function = NULL;
    hotlease_error* error = NULL;
    uint64_t count = 0;
    size_t size = 0;
    if (hotlease_allocate(code, options, &kept, &error) != HOTLEASE_OK) {
        printf("    no lease: %s\n", hotlease_error_message(error));
        hotlease_error_free(error);
        return 0;
    }
    CHECK(hotlease_function_find(kept, "visits", NULL, &function, NULL) == HOTLEASE_OK);
    CHECK(hotlease_invoke(function, NULL, 0, &count, sizeof count, &size, NULL) == HOTLEASE_OK);
    hotlease_function_free(function);
    CHECK(hotlease_deallocate(kept, NULL, NULL) == HOTLEASE_OK);
    hotlease_invoker_free(kept);
    return count;
}

static void states(const hotlease_code* code)
{
    hotlease_options options = {.struct_size = sizeof options, .state = "visits-c", .patience_ms = 20 * 1000};
    for (uint64_t time = 1; time <= 3; time++)
        CHECK(visits(code, &options) == time);
    options.state = "";
    CHECK(visits(code, &options) == 1);
    /* A program from before this option behaves as before. */
    options.state = "visits-c";
    options.struct_size = offsetof(hotlease_options, state);
    CHECK(visits(code, &options) == 1);
    options.struct_size = sizeof options;
    CHECK(visits(code, &options) == 4);

    hotlease_error* error = NULL;
    options.slots = 2;
    CHECK(hotlease_allocate(code, &options, &invoker, &error) == HOTLEASE_INVALID_ARGUMENT);
    CHECK(strstr(hotlease_error_message(error), "one worker with one slot") != NULL);
    hotlease_error_free(error);
}

/* Whether a lease with these options has this value of TEST_VARIABLE when its library is loaded. */
static int has_variable(const hotlease_code* code, const hotlease_options* options, const char* value)
{
    hotlease_invoker* leased = NULL;
    hotlease_function* function = NULL;
    char out[64];
    size_t size = 0;
    CHECK(hotlease_allocate(code, options, &leased, NULL) == HOTLEASE_OK);
    if (leased == NULL)
        return 0;
    CHECK(hotlease_function_find(leased, "variable", NULL, &function, NULL) == HOTLEASE_OK);
    CHECK(hotlease_invoke(function, NULL, 0, out, sizeof out, &size, NULL) == HOTLEASE_OK);
    hotlease_function_free(function);
    CHECK(hotlease_deallocate(leased, NULL, NULL) == HOTLEASE_OK);
    hotlease_invoker_free(leased);
    return size == strlen(value) && memcmp(out, value, size) == 0;
}

static void variables(const hotlease_code* code)
{
    hotlease_options options = {.struct_size = sizeof options, .patience_ms = 20 * 1000};
    options.variables = "OTHER=\n\nTEST_VARIABLE=a = b\n";
    CHECK(has_variable(code, &options, "a = b"));
    /* A program from before this option behaves as before. */
    options.struct_size = offsetof(hotlease_options, variables);
    CHECK(has_variable(code, &options, ""));
    options.struct_size = sizeof options;
    options.variables = NULL;
    CHECK(has_variable(code, &options, ""));

    const char* refused[][2] = {{"TEST_VARIABLE", "NAME=VALUE"}, {"=x", "variables"}, {"HOTLEASE_LOG=x", "HOTLEASE_LOG"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        hotlease_error* error = NULL;
        options.variables = refused[i][0];
        CHECK(hotlease_allocate(code, &options, &invoker, &error) == HOTLEASE_INVALID_ARGUMENT);
        CHECK(strstr(hotlease_error_message(error), refused[i][1]) != NULL);
        hotlease_error_free(error);
    }
}

int main(int argc, char** argv)
{
    hotlease_code* code = NULL;
    hotlease_error* error = NULL;
    if (argc < 2 || hotlease_code_open(argv[1], &code, &error) != HOTLEASE_OK) {
        printf("    cannot open the functions: %s\n", hotlease_error_message(error));
        return 1;
    }
    CHECK(hotlease_code_function_count(code) == 9);
    CHECK(strcmp(hotlease_code_function_name(code, 0), "alignment") == 0);
    CHECK(hotlease_code_function_name(code, 9) == NULL);

    /* Impossible options are rejected before any request is sent. */
    hotlease_options odd = {.struct_size = sizeof odd, .depth = 63};
    CHECK(hotlease_allocate(code, &odd, &invoker, &error) == HOTLEASE_INVALID_ARGUMENT);
    CHECK(strstr(hotlease_error_message(error), "depth") != NULL);
    hotlease_error_free(error);
    error = NULL;

    hotlease_options elsewhere = {.struct_size = sizeof elsewhere, .manager = "manager:7070"};
    CHECK(hotlease_allocate(code, &elsewhere, &invoker, &error) == HOTLEASE_INVALID_ARGUMENT);
    CHECK(strstr(hotlease_error_message(error), "https://HOST:PORT") != NULL);
    hotlease_error_free(error);

    unsetenv("HOTLEASE_TRANSPORT");
    transports(code);
    states(code);
    variables(code);
    hotlease_options options = {.struct_size = sizeof options, .slots = 1, .label = "test in C"};
    if (hotlease_allocate(code, &options, &invoker, &error) != HOTLEASE_OK) {
        printf("    cannot allocate: %s\n", hotlease_error_message(error));
        return 1;
    }
    CHECK(hotlease_invoker_slots(invoker) == 1 && strcmp(hotlease_invoker_transport(invoker), "shm") == 0);
    hotlease_code_free(code); /* the invoker keeps what it needs */

    calls();
    failures();
    futures();
    callbacks();
    maps();
    threads();
    plans();

    hotlease_function* echo = find("echo", NULL);
    hotlease_usage usage = {.struct_size = 4096};
    CHECK(hotlease_deallocate(invoker, &usage, NULL) == HOTLEASE_INVALID_ARGUMENT);
    usage.struct_size = sizeof usage;
    CHECK(hotlease_deallocate(invoker, &usage, NULL) == HOTLEASE_OK);
    CHECK(usage.invocations > 80000 && usage.allocated_ns > 0 && usage.compute_ns > 0);
    CHECK(hotlease_deallocate(invoker, NULL, NULL) == HOTLEASE_LEASE_ENDED);
    CHECK(hotlease_invoke(echo, "x", 1, NULL, 0, NULL, NULL) == HOTLEASE_LEASE_ENDED);
    hotlease_invoker_free(invoker);
    hotlease_function_free(echo);
    return checks_done();
}
