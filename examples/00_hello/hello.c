/* Leases one slot of a worker and calls a function on it: hello.cpp in C.
 * Run it where it was built, or name the function library: hello_c path/to/libhello_functions.so */

#include <hotlease/hotlease.h>

#include <stdio.h>

int main(int argc, char** argv)
{
    hotlease_code* code = NULL;
    hotlease_invoker* invoker = NULL;
    hotlease_function* add = NULL;
    hotlease_error* error = NULL;
    hotlease_options options = {.struct_size = sizeof options, .slots = 1};
    int failed = 1;

    /* Every step that can fail returns 0 (HOTLEASE_OK) or sets `error`. */
    if (hotlease_code_open(argc > 1 ? argv[1] : "libhello_functions.so", &code, &error))
        goto done;
    if (hotlease_allocate(code, &options, &invoker, &error))
        goto done;
    if (hotlease_function_find(invoker, "add", NULL, &add, &error))
        goto done;

    double numbers[] = {1, 2, 39};
    double sum = 0;
    size_t size = 0;
    if (hotlease_invoke(add, numbers, sizeof numbers, &sum, sizeof sum, &size, &error))
        goto done;
    printf("1 + 2 + 39 = %g\n", sum);

    hotlease_usage used = {.struct_size = sizeof used};
    if (hotlease_deallocate(invoker, &used, &error))
        goto done;
    printf("%llu calls\n", (unsigned long long)used.invocations);
    failed = 0;

done:
    if (failed)
        fprintf(stderr, "hello: %s\n", hotlease_error_message(error));
    /* Objects may be freed in any order; NULL is allowed. */
    hotlease_error_free(error);
    hotlease_function_free(add);
    hotlease_invoker_free(invoker);
    hotlease_code_free(code);
    return failed;
}
