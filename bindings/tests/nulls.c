/* NULL and nonsense give errors, not crashes. Needs no platform. */

#include <hotlease/hotlease.h>

#include "check.h"

#include <string.h>

/* Checks that the call was rejected as a bad argument, with an error that names it. */
static void refused(hotlease_status status, hotlease_error* error, const char* word)
{
    CHECK(status == HOTLEASE_INVALID_ARGUMENT);
    CHECK(hotlease_error_status(error) == status);
    CHECK(hotlease_error_ran(error) == HOTLEASE_RAN_NO);
    CHECK(!hotlease_error_billed(error));
    CHECK(strstr(hotlease_error_message(error), word) != NULL);
    hotlease_error_free(error);
}
#define REFUSED(call, word)                      \
    do {                                         \
        hotlease_error* error = NULL;            \
        hotlease_status status = (call);         \
        refused(status, error, word);            \
    } while (0)

static void callback(void* user, hotlease_status status, const void* out, size_t out_size,
                     const hotlease_error* error)
{
    (void)user, (void)status, (void)out, (void)out_size, (void)error;
    CHECK(!"called, although the call was refused");
}

int main(void)
{
    hotlease_code* code = NULL;
    hotlease_invoker* invoker = NULL;
    hotlease_function* function = NULL;
    hotlease_buffer* buffer = NULL;
    hotlease_invocation* invocation = NULL;
    hotlease_range nothing = {NULL, 0, 0};
    char bytes[8] = {0};
    size_t size = 77;

    REFUSED(hotlease_code_open(NULL, &code, &error), "path is NULL");
    REFUSED(hotlease_code_open("x", NULL, &error), "code is NULL");
    REFUSED(hotlease_code_from_bytes(NULL, 5, &code, &error), "NULL");
    REFUSED(hotlease_allocate(NULL, NULL, &invoker, &error), "code is NULL");
    REFUSED(hotlease_deallocate(NULL, NULL, &error), "invoker is NULL");
    REFUSED(hotlease_function_find(NULL, "f", NULL, &function, &error), "invoker is NULL");
    REFUSED(hotlease_invoke(NULL, bytes, 8, bytes, 8, &size, &error), "function is NULL");
    REFUSED(hotlease_submit(NULL, bytes, 8, &invocation, &error), "function is NULL");
    REFUSED(hotlease_try_submit(NULL, bytes, 8, &invocation, &error), "function is NULL");
    REFUSED(hotlease_wait(NULL, bytes, 8, &size, &error), "invocation is NULL");
    REFUSED(hotlease_submit_then(NULL, bytes, 8, callback, NULL, &error), "function is NULL");
    REFUSED(hotlease_then(NULL, callback, NULL, &error), "invocation is NULL");
    REFUSED(hotlease_map(NULL, NULL, 0, &error), "function is NULL");
    REFUSED(hotlease_buffer_create(NULL, 8, &buffer, &error), "invoker is NULL");
    REFUSED(hotlease_invoke_buffers(NULL, nothing, nothing, &size, &error), "function is NULL");
    REFUSED(hotlease_submit_buffers(NULL, nothing, nothing, &invocation, &error), "function is NULL");
    REFUSED(hotlease_function_on_slot(NULL, 0, &function, &error), "function is NULL");
    REFUSED(hotlease_invoke_from_buffer(NULL, nothing, bytes, 8, &size, &error), "function is NULL");
    REFUSED(hotlease_invoke_to_buffer(NULL, bytes, 8, nothing, &size, &error), "function is NULL");
    REFUSED(hotlease_submit_from_buffer(NULL, nothing, &invocation, &error), "function is NULL");
    REFUSED(hotlease_submit_to_buffer(NULL, bytes, 8, nothing, &invocation, &error), "function is NULL");
    REFUSED(hotlease_invoke_parts(NULL, NULL, 0, NULL, 0, &size, &error), "function is NULL");
    hotlease_pipeline* pipeline = NULL;
    REFUSED(hotlease_pipeline_open(NULL, &pipeline, &error), "function is NULL");
    REFUSED(hotlease_pipeline_push(NULL, bytes, 8, &error), "pipeline is NULL");
    REFUSED(hotlease_pipeline_pop(NULL, bytes, 8, &size, &error), "pipeline is NULL");
    CHECK(hotlease_pipeline_size(NULL) == 0 && hotlease_pipeline_is_full(NULL) == 0 && pipeline == NULL);
    hotlease_pipeline_free(NULL);
    hotlease_model* model = NULL;
    hotlease_plan plan = {.struct_size = sizeof plan, .local = 55};
    REFUSED(hotlease_model_learn(NULL, bytes, 8, &model, &error), "function is NULL");
    REFUSED(hotlease_model_plan(NULL, 1, 1, &plan, &error), "model is NULL");
    REFUSED(hotlease_model_plan(NULL, 1, 1, NULL, &error), "plan is NULL");
    CHECK(model == NULL && plan.local == 55);
    hotlease_model_free(NULL);
    CHECK(size == 77 && code == NULL && invoker == NULL && function == NULL && invocation == NULL);

    /* The error is optional. */
    CHECK(hotlease_code_open(NULL, &code, NULL) == HOTLEASE_INVALID_ARGUMENT);

    CHECK(hotlease_code_function_count(NULL) == 0);
    CHECK(hotlease_code_function_name(NULL, 0) == NULL);
    CHECK(hotlease_invoker_slots(NULL) == 0);
    CHECK(hotlease_function_output_bytes(NULL) == 0);
    CHECK(strcmp(hotlease_invoker_transport(NULL), "") == 0);
    CHECK(hotlease_buffer_data(NULL) == NULL);
    CHECK(hotlease_buffer_size(NULL) == 0);
    CHECK(hotlease_is_done(NULL) == 1);
    CHECK(hotlease_wait_for(NULL, 1000000) == 1);

    CHECK(hotlease_error_status(NULL) == HOTLEASE_OK);
    CHECK(hotlease_error_ran(NULL) == HOTLEASE_RAN_NO);
    CHECK(hotlease_error_billed(NULL) == 0);
    CHECK(hotlease_error_retryable(NULL) == 0);
    CHECK(hotlease_error_code(NULL) == 0);
    CHECK(hotlease_error_needed(NULL) == 0);
    CHECK(strcmp(hotlease_error_message(NULL), "") == 0);
    CHECK(strcmp(hotlease_status_name(HOTLEASE_WORKER_DIED), "worker died") == 0);
    CHECK(strcmp(hotlease_status_name((hotlease_status)999), "unknown status") == 0);

    hotlease_code_free(NULL);
    hotlease_invoker_free(NULL);
    hotlease_function_free(NULL);
    hotlease_buffer_free(NULL);
    hotlease_invocation_free(NULL);
    hotlease_error_free(NULL);

    /* A file that is not a function library is rejected as such, with its name. */
    hotlease_error* error = NULL;
    CHECK(hotlease_code_open("/nonexistent.so", &code, &error) == HOTLEASE_CODE_REJECTED);
    CHECK(strstr(hotlease_error_message(error), "/nonexistent.so") != NULL);
    hotlease_error_free(error);
    CHECK(hotlease_code_from_bytes("hello", 5, &code, NULL) == HOTLEASE_CODE_REJECTED);

    /* The library has the version of this header. */
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", HOTLEASE_VERSION_MAJOR, HOTLEASE_VERSION_MINOR,
             HOTLEASE_VERSION_PATCH);
    CHECK(strcmp(hotlease_version(), version) == 0);
    return checks_done();
}
