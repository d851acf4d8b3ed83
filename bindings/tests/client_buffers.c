/* The buffers of hotlease.h, against a running platform: client_buffers path/to/libtest_functions.so */

#include <hotlease/hotlease.h>

#include "check.h"

#include <stdlib.h>
#include <string.h>

static hotlease_invoker* invoker;

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

static void buffers(void)
{
    enum { COUNT = 1 << 20 };
    hotlease_function* increment = find("increment", NULL);
    hotlease_buffer* buffer = NULL;
    CHECK(hotlease_buffer_create(invoker, COUNT * 4, &buffer, NULL) == HOTLEASE_OK);
    CHECK(hotlease_buffer_size(buffer) == COUNT * 4);
    unsigned* numbers = hotlease_buffer_data(buffer);
    CHECK(numbers[0] == 0 && numbers[COUNT - 1] == 0);
    for (unsigned i = 0; i < COUNT; i++)
        numbers[i] = i;

    /* All of it in place, input and output at once. */
    hotlease_range all = {buffer, 0, COUNT * 4};
    size_t size = 0;
    CHECK(hotlease_invoke_buffers(increment, all, all, &size, NULL) == HOTLEASE_OK && size == COUNT * 4);
    CHECK(numbers[0] == 1 && numbers[COUNT - 1] == COUNT);

    /* Two parts in flight at once. */
    hotlease_range low = {buffer, 0, COUNT * 2}, high = {buffer, COUNT * 2, COUNT * 2};
    hotlease_invocation *first = NULL, *second = NULL;
    CHECK(hotlease_submit_buffers(increment, low, low, &first, NULL) == HOTLEASE_OK);
    CHECK(hotlease_submit_buffers(increment, high, high, &second, NULL) == HOTLEASE_OK);
    CHECK(hotlease_wait(first, NULL, 0, &size, NULL) == HOTLEASE_OK && size == COUNT * 2);
    CHECK(hotlease_wait(second, NULL, 0, &size, NULL) == HOTLEASE_OK && size == COUNT * 2);
    CHECK(numbers[0] == 2 && numbers[COUNT - 1] == COUNT + 1);

    /* Ranges outside of the buffer, also ones whose end wraps around. */
    const hotlease_range outside[] = {{buffer, COUNT * 4, 1},
                                      {buffer, 0, COUNT * 4 + 1},
                                      {buffer, SIZE_MAX, 2},
                                      {buffer, 8, SIZE_MAX - 4},
                                      {NULL, 0, 8}};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        CHECK(hotlease_invoke_buffers(increment, outside[i], all, &size, NULL) == HOTLEASE_INVALID_ARGUMENT);
        CHECK(hotlease_submit_buffers(increment, all, outside[i], &first, NULL) == HOTLEASE_INVALID_ARGUMENT);
    }
    /* A result that does not fit. */
    hotlease_range little = {buffer, 0, 8};
    CHECK(hotlease_invoke_buffers(increment, all, little, &size, NULL) == HOTLEASE_OUTPUT_TOO_LARGE);

    /* Freed while in use: the memory stays until the call has ended. */
    hotlease_invocation* last = NULL;
    CHECK(hotlease_submit_buffers(increment, all, all, &last, NULL) == HOTLEASE_OK);
    hotlease_buffer_free(buffer);
    CHECK(hotlease_wait(last, NULL, 0, &size, NULL) == HOTLEASE_OK && size == COUNT * 4);

    hotlease_buffer* empty = NULL;
    CHECK(hotlease_buffer_create(invoker, 0, &empty, NULL) == HOTLEASE_OK);
    CHECK(hotlease_buffer_size(empty) == 0);
    hotlease_buffer_free(empty);
    hotlease_function_free(increment);
}

static void parts(void)
{
    hotlease_function* increment = find("increment", NULL);
    hotlease_buffer *from = NULL, *to = NULL;
    CHECK(hotlease_buffer_create(invoker, 4000, &from, NULL) == HOTLEASE_OK);
    CHECK(hotlease_buffer_create(invoker, 4000, &to, NULL) == HOTLEASE_OK);
    unsigned *in = hotlease_buffer_data(from), *out = hotlease_buffer_data(to);
    for (unsigned i = 0; i < 1000; i++)
        in[i] = i;
    /* 5 numbers, gathered in the first order and scattered in the second. */
    const hotlease_range gathered[] = {{from, 3600, 8}, {from, 0, 4}, {from, 40, 0}, {from, 400, 8}};
    const hotlease_range scattered[] = {{to, 8, 4}, {to, 3000, 16}, {to, 0, 4}};
    size_t size = 0;
    CHECK(hotlease_invoke_parts(increment, gathered, 4, scattered, 3, &size, NULL) == HOTLEASE_OK);
    CHECK(size == 20 && out[2] == 901 && out[750] == 902 && out[751] == 1 && out[752] == 101 && out[753] == 102);
    CHECK(out[0] == 0 && out[1] == 0 && out[3] == 0 && out[749] == 0 && out[754] == 0);

    /* No parts: no input, and no room for output. */
    CHECK(hotlease_invoke_parts(increment, NULL, 0, scattered, 3, &size, NULL) == HOTLEASE_OK && size == 0);
    CHECK(hotlease_invoke_parts(increment, NULL, 0, NULL, 0, &size, NULL) == HOTLEASE_OK && size == 0);
    CHECK(hotlease_invoke_parts(increment, gathered, 4, NULL, 0, &size, NULL) == HOTLEASE_OUTPUT_TOO_LARGE);
    /* The parts have room for 4 of the 5. */
    CHECK(hotlease_invoke_parts(increment, gathered, 4, &scattered[1], 1, &size, NULL) ==
          HOTLEASE_OUTPUT_TOO_LARGE);

    hotlease_range many[HOTLEASE_PARTS_MAX + 1];
    for (size_t i = 0; i <= HOTLEASE_PARTS_MAX; i++)
        many[i] = (hotlease_range){from, 4 * i, 4};
    const hotlease_range all = {to, 0, 4000};
    CHECK(hotlease_invoke_parts(increment, many, HOTLEASE_PARTS_MAX, &all, 1, &size, NULL) == HOTLEASE_OK);
    CHECK(size == 4 * HOTLEASE_PARTS_MAX && out[HOTLEASE_PARTS_MAX - 1] == HOTLEASE_PARTS_MAX);
    hotlease_error* error = NULL;
    CHECK(hotlease_invoke_parts(increment, many, HOTLEASE_PARTS_MAX + 1, &all, 1, &size, &error) ==
          HOTLEASE_INVALID_ARGUMENT);
    CHECK(strstr(hotlease_error_message(error), "16") != NULL);
    hotlease_error_free(error);
    error = NULL;
    many[2].size = 4001;
    CHECK(hotlease_invoke_parts(increment, many, 3, &all, 1, &size, &error) == HOTLEASE_INVALID_ARGUMENT);
    CHECK(strstr(hotlease_error_message(error), "part 2") != NULL);
    hotlease_error_free(error);
    error = NULL;
    CHECK(hotlease_invoke_parts(increment, NULL, 1, &all, 1, &size, &error) == HOTLEASE_INVALID_ARGUMENT);
    hotlease_error_free(error);
    hotlease_buffer_free(from);
    hotlease_buffer_free(to);
    hotlease_function_free(increment);
}

/* More buffers than the worker may know at a time. */
static void limits(const hotlease_code* code)
{
    hotlease_options options = {.struct_size = sizeof options, .registered_buffers = 2};
    hotlease_invoker* limited = NULL;
    CHECK(hotlease_allocate(code, &options, &limited, NULL) == HOTLEASE_OK);
    hotlease_function* increment = NULL;
    CHECK(hotlease_function_find(limited, "increment", NULL, &increment, NULL) == HOTLEASE_OK);
    hotlease_buffer* buffers[5] = {0};
    hotlease_range ranges[5];
    for (size_t i = 0; i < 5; i++) {
        CHECK(hotlease_buffer_create(limited, 4, &buffers[i], NULL) == HOTLEASE_OK);
        ranges[i] = (hotlease_range){buffers[i], 0, 4};
    }
    for (size_t i = 0; i < 50; i++) /* from one to the next */
        CHECK(hotlease_invoke_buffers(increment, ranges[i % 5], ranges[(i + 1) % 5], NULL, NULL) == HOTLEASE_OK);
    CHECK(*(unsigned*)hotlease_buffer_data(buffers[0]) == 50);
    /* Three are too many for one call. */
    hotlease_error* error = NULL;
    CHECK(hotlease_invoke_parts(increment, ranges, 2, &ranges[2], 1, NULL, &error) == HOTLEASE_BUSY);
    CHECK(strstr(hotlease_error_message(error), "registered_buffers") != NULL);
    hotlease_error_free(error);
    for (size_t i = 0; i < 5; i++)
        hotlease_buffer_free(buffers[i]);
    hotlease_function_free(increment);
    CHECK(hotlease_deallocate(limited, NULL, NULL) == HOTLEASE_OK);
    hotlease_invoker_free(limited);
}

int main(int argc, char** argv)
{
    hotlease_code* code = NULL;
    hotlease_error* error = NULL;
    if (argc < 2 || hotlease_code_open(argv[1], &code, &error) != HOTLEASE_OK ||
        hotlease_allocate(code, NULL, &invoker, &error) != HOTLEASE_OK) {
        printf("    cannot begin: %s\n", hotlease_error_message(error));
        return 1;
    }
    buffers();
    parts();
    CHECK(hotlease_deallocate(invoker, NULL, NULL) == HOTLEASE_OK);
    hotlease_invoker_free(invoker);
    limits(code);
    hotlease_code_free(code);
    return checks_done();
}
