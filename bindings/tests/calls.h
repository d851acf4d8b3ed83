/* Calls that work, and calls that fail as they should. */
#ifndef CALLS_H
#define CALLS_H

#include "members.h"

/* Checks that the call failed with this status, and with an error about this rank that contains this word. */
static void failed(int line, hotlease_status status, hotlease_error* error, hotlease_status expected,
                   int64_t rank, const char* word)
{
    const int is_so = status == expected && hotlease_error_status(error) == expected &&
                      hotlease_error_rank(error) == rank && strstr(hotlease_error_message(error), word) != NULL;
    if (!is_so)
        printf("    line %d: %s, about rank %lld: %s\n", line, hotlease_status_name(status),
               (long long)hotlease_error_rank(error), hotlease_error_message(error));
    EXPECT(is_so);
    hotlease_error_free(error);
}
#define FAILS(call, expected, rank, word)                      \
    do {                                                       \
        hotlease_error* error = NULL;                          \
        hotlease_status status = (call);                       \
        failed(__LINE__, status, error, expected, rank, word); \
    } while (0)
/* Checks that the call succeeded; its last argument is `&error`. */
static void worked(int line, hotlease_status status, hotlease_error* error)
{
    if (status != HOTLEASE_OK)
        printf("    line %d: %s\n", line, hotlease_error_message(error));
    EXPECT(status == HOTLEASE_OK);
    hotlease_error_free(error);
}
#define WORKS(call)                      \
    do {                                 \
        hotlease_error* error = NULL;    \
        hotlease_status status = (call); \
        worked(__LINE__, status, error); \
    } while (0)

#endif
