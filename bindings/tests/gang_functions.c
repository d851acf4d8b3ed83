/* Functions for the tests of gangs: each rank is a worker of its own. */

#include <hotlease/gang.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The rank that this worker was told has failed; -1: none. Kept between calls. */
static int64_t lost = -1;

static int32_t give(const void* value, uint64_t bytes, void* out, uint64_t capacity, uint64_t* produced)
{
    if (bytes <= capacity)
        memcpy(out, value, bytes);
    *produced = bytes;
    return 0;
}

/* Returns the sum of the ranks' numbers. */
HOTLEASE_FUNCTION(total)
{
    const hotlease_comm* all = NULL;
    hotlease_error* error = NULL;
    double sum = 0;

    if (size != sizeof sum)
        return hotlease_fail(33, "one double, please", out, capacity, produced);
    if (hotlease_context_communicator(context, &all, &error)
        || hotlease_comm_allreduce(all, in, &sum, 1, HOTLEASE_COMM_F64, HOTLEASE_COMM_SUM, &error))
        return hotlease_fail_by(error, out, capacity, produced);
    return give(&sum, sizeof sum, out, capacity, produced);
}

/* Returns the rank, the number of ranks, the process, and the rank that this worker was told has failed. */
HOTLEASE_FUNCTION(where)
{
    const hotlease_comm *all = NULL, *again = NULL;
    hotlease_error* error = NULL;

    (void)in, (void)size;
    if (hotlease_context_communicator(context, &all, &error)
        || hotlease_context_communicator(context, &again, &error))
        return hotlease_fail_by(error, out, capacity, produced);
    if (all != again)
        return hotlease_fail(34, "there are two", out, capacity, produced);
    const int64_t told[4] = {hotlease_comm_rank(all), hotlease_comm_size(all), getpid(), lost};
    lost = -1;
    return give(told, sizeof told, out, capacity, produced);
}

/* Sends a number to the next rank, which does not receive it in this call. */
HOTLEASE_FUNCTION(leave)
{
    const hotlease_comm* all = NULL;
    hotlease_error* error = NULL;

    if (hotlease_context_communicator(context, &all, &error)
        || hotlease_comm_send(all, in, size, (hotlease_comm_rank(all) + 1) % hotlease_comm_size(all), 7, &error))
        return hotlease_fail_by(error, out, capacity, produced);
    return 0;
}

/* Receives the number of an earlier call. */
HOTLEASE_FUNCTION(take)
{
    const hotlease_comm* all = NULL;
    hotlease_error* error = NULL;
    hotlease_comm_message message;

    (void)in, (void)size;
    if (hotlease_context_communicator(context, &all, &error)
        || hotlease_comm_recv(all, out, capacity, HOTLEASE_COMM_ANY, 7, &message, &error))
        return hotlease_fail_by(error, out, capacity, produced);
    *produced = message.size;
    return 0;
}

/* Acts by the letter in the input: 'f' fails, 'd' dies, 'r' fails before it asks for the communicator, 's' sleeps for a
 * minute. Other ranks wait for rank 1. */
HOTLEASE_FUNCTION(act)
{
    const char what = size == 1 ? *(const char*)in : '?';
    const hotlease_comm* all = NULL;
    hotlease_error* error = NULL;

    if (what == 'r')
        return hotlease_fail(35, "not this one", out, capacity, produced);
    if (hotlease_context_communicator(context, &all, &error))
        return hotlease_fail_by(error, out, capacity, produced);
    if (what == 'f')
        return hotlease_fail(36, "not me", out, capacity, produced);
    if (what == 'd')
        abort();
    if (what == 's') {
        for (int waited = 0; waited < 600 && !hotlease_cancelled(context); waited++)
            nanosleep(&(struct timespec){.tv_nsec = 100 * 1000 * 1000}, NULL);
        return 0;
    }
    if (hotlease_comm_recv(all, out, capacity, 1, 8, NULL, &error)) {
        lost = hotlease_error_status(error) == HOTLEASE_MEMBER_LOST ? hotlease_error_rank(error) : -2;
        return hotlease_fail_by(error, out, capacity, produced);
    }
    return 0;
}
