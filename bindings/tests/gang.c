/* gang.h: functions at the same time on two workers, their kept state, and their common failure. Needs a platform with
 * two cores; the argument is the library of gang_functions.c. */

#include <hotlease/gang.h>

#include "check.h"

#include <string.h>

enum { ranks = 2 };

static hotlease_code* code;

/* Frees the error, and prints it if it was not expected. */
static hotlease_status done(hotlease_status status, hotlease_error* error, hotlease_status expected)
{
    if (status != expected)
        printf("    %s\n", hotlease_error_message(error));
    hotlease_error_free(error);
    return status;
}

static hotlease_gang* leased(hotlease_options options)
{
    hotlease_gang* gang = NULL;
    hotlease_error* error = NULL;
    options.struct_size = sizeof options;
    options.patience_ms = 20 * 1000;
    CHECK(done(hotlease_gang_lease(code, &options, NULL, &gang, &error), error, HOTLEASE_OK) == HOTLEASE_OK);
    return gang;
}

/* Checks that all ranks get the sum. */
static void adds_up(const hotlease_gang* gang)
{
    const double one = 1, two = 2;
    double sums[ranks] = {0};
    size_t sizes[ranks] = {0};
    hotlease_error* error = NULL;
    const hotlease_status status = hotlease_gang_call_each(gang, "total", (const void*[]){&one, &two},
                                                           (const size_t[]){sizeof one, sizeof two}, sums,
                                                           sizeof *sums, sizes, &error);
    CHECK(done(status, error, HOTLEASE_OK) == HOTLEASE_OK);
    CHECK(sums[0] == 3 && sums[1] == 3);
    CHECK(sizes[0] == sizeof *sums && sizes[1] == sizeof *sums);
}

/* For each rank: its number, the number of ranks, its process, and the rank that it was told has failed since. */
typedef struct place {
    int64_t rank, size, pid, lost;
} place;

static void look(const hotlease_gang* gang, place places[ranks])
{
    hotlease_error* error = NULL;
    const hotlease_status status =
        hotlease_gang_call(gang, "where", NULL, 0, places, sizeof *places, NULL, &error);
    CHECK(done(status, error, HOTLEASE_OK) == HOTLEASE_OK);
    for (int64_t rank = 0; rank < ranks; rank++)
        CHECK(places[rank].rank == rank && places[rank].size == ranks);
}

/* Checks that a call in which ranks act by these letters fails at this rank, for this reason. */
static void fails(const hotlease_gang* gang, const char* acts, hotlease_status status, int64_t rank, const char* why)
{
    char out[ranks][64];
    hotlease_error* error = NULL;
    const hotlease_status failed =
        hotlease_gang_call_each(gang, "act", (const void*[]){acts, acts + 1}, (const size_t[]){1, 1}, out,
                                sizeof *out, NULL, &error);
    CHECK(failed == status);
    CHECK(hotlease_error_rank(error) == rank);
    CHECK(strstr(hotlease_error_message(error), why) != NULL);
    CHECK(hotlease_error_billed(error) == 1 && hotlease_error_retryable(error) == 0);
    done(failed, error, status);
}

static void keeps_its_communicator(const hotlease_gang* gang)
{
    const uint64_t sent = 0x5eed;
    uint64_t got[ranks] = {0};
    CHECK(hotlease_gang_call(gang, "leave", &sent, sizeof sent, NULL, 0, NULL, NULL) == HOTLEASE_OK);
    CHECK(hotlease_gang_call(gang, "take", NULL, 0, got, sizeof *got, NULL, NULL) == HOTLEASE_OK);
    CHECK(got[0] == sent && got[1] == sent);
}

static void fails_together(const hotlease_gang* gang)
{
    place before[ranks], after[ranks];
    look(gang, before);

    fails(gang, "wf", HOTLEASE_FUNCTION_FAILED, 1, "not me");
    look(gang, after);
    CHECK(after[0].lost == 1); /* the other rank was told which one failed */
    CHECK(after[0].pid == before[0].pid && after[1].pid == before[1].pid);

    /* No rank waits for one that has not even asked. */
    CHECK(hotlease_gang_call(gang, "nothing", NULL, 0, NULL, 0, NULL, NULL) == HOTLEASE_UNKNOWN_FUNCTION);
    fails(gang, "rf", HOTLEASE_FUNCTION_FAILED, 0, "not this one");
    fails(gang, "wr", HOTLEASE_FUNCTION_FAILED, 1, "not this one");
    look(gang, after);
    CHECK(after[0].pid == before[0].pid && after[1].pid == before[1].pid);

    fails(gang, "wd", HOTLEASE_WORKER_DIED, 1, "rank 1 of 2");
    look(gang, after);
    CHECK(after[0].pid != before[0].pid && after[1].pid != before[1].pid);
    adds_up(gang);

    /* A rank that never asks is ended. */
    look(gang, before);
    fails(gang, "sf", HOTLEASE_FUNCTION_FAILED, 1, "not me");
    look(gang, after);
    CHECK(after[0].pid != before[0].pid && after[1].pid != before[1].pid);
}

static void says_what_does_not_fit(const hotlease_gang* gang)
{
    const double one = 1;
    double sums[ranks];
    hotlease_error* error = NULL;
    CHECK(hotlease_gang_call(gang, "total", &one, sizeof one, sums, 4, NULL, &error) == HOTLEASE_OUTPUT_TOO_LARGE);
    CHECK(hotlease_error_needed(error) == sizeof one && hotlease_error_rank(error) == 0);
    hotlease_error_free(error);
    CHECK(hotlease_gang_call(gang, "total", &one, 1, sums, sizeof one, NULL, &error) == HOTLEASE_FUNCTION_FAILED);
    CHECK(hotlease_error_code(error) == 33 && hotlease_error_ran(error) == HOTLEASE_RAN_YES);
    hotlease_error_free(error);
    adds_up(gang);
}

/* A function that is not called on a gang has no communicator, and is told what to do. */
static void alone(void)
{
    const double one = 1;
    double sum;
    size_t size;
    hotlease_invoker* invoker = NULL;
    hotlease_function* total = NULL;
    hotlease_error* error = NULL;
    hotlease_options options = {.struct_size = sizeof options, .patience_ms = 20 * 1000};
    CHECK(hotlease_allocate(code, &options, &invoker, NULL) == HOTLEASE_OK);
    CHECK(hotlease_function_find(invoker, "total", NULL, &total, NULL) == HOTLEASE_OK);
    CHECK(hotlease_invoke(total, &one, sizeof one, &sum, sizeof sum, &size, &error) == HOTLEASE_FUNCTION_FAILED);
    CHECK(hotlease_error_code(error) == HOTLEASE_INVALID_ARGUMENT);
    CHECK(strstr(hotlease_error_message(error), "hotlease_gang_call") != NULL);
    hotlease_error_free(error);
    hotlease_function_free(total);
    CHECK(hotlease_deallocate(invoker, NULL, NULL) == HOTLEASE_OK);
    hotlease_invoker_free(invoker);
}

static void refusals(void)
{
    hotlease_gang* gang = NULL;
    hotlease_options options = {.struct_size = sizeof options, .workers = 500};
    CHECK(hotlease_gang_lease(code, &options, NULL, &gang, NULL) == HOTLEASE_NO_CAPACITY);
    options.workers = 2049;
    CHECK(hotlease_gang_lease(code, &options, NULL, &gang, NULL) == HOTLEASE_INVALID_ARGUMENT);
    options = (hotlease_options){.struct_size = sizeof options, .shared = 1};
    CHECK(hotlease_gang_lease(code, &options, NULL, &gang, NULL) == HOTLEASE_INVALID_ARGUMENT);
    options.shared = 0;
    CHECK(hotlease_gang_lease(code, &options, "here", &gang, NULL) == HOTLEASE_INVALID_ARGUMENT);
    CHECK(hotlease_gang_lease(code, &options, "192.0.2.1", &gang, NULL) == HOTLEASE_LOCAL);
    CHECK(gang == NULL);
}

int main(int argc, char** argv)
{
    CHECK(argc == 2);
    CHECK(hotlease_code_open(argv[1], &code, NULL) == HOTLEASE_OK);
    alone();
    refusals();

    hotlease_gang* gang = leased((hotlease_options){.workers = ranks});
    CHECK(hotlease_gang_ranks(gang) == ranks);
    adds_up(gang);
    keeps_its_communicator(gang);
    says_what_does_not_fit(gang);
    fails_together(gang);
    hotlease_usage usage = {.struct_size = sizeof usage};
    CHECK(hotlease_gang_end(gang, &usage, NULL) == HOTLEASE_OK && usage.invocations > 0);
    CHECK(hotlease_gang_end(gang, NULL, NULL) == HOTLEASE_LEASE_ENDED);
    CHECK(hotlease_gang_call(gang, "where", NULL, 0, NULL, 0, NULL, NULL) == HOTLEASE_LEASE_ENDED);
    hotlease_gang_free(gang);

    /* Both ranks in one worker. */
    gang = leased((hotlease_options){.slots = ranks});
    place places[ranks];
    look(gang, places);
    CHECK(places[0].pid == places[1].pid);
    adds_up(gang);
    hotlease_gang_free(gang);

    hotlease_code_free(code);
    return checks_done();
}
