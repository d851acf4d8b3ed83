/*
 * hotlease/gang.h: functions that run on several workers at the same time, and send each other messages, from C (C11).
 * For callers and for authors of functions: programs link with -lhotlease, and so do function libraries.
 *
 * The function:
 *
 *     HOTLEASE_FUNCTION(total)
 *     {
 *         const hotlease_comm* all = NULL;
 *         hotlease_error* error = NULL;
 *         if (hotlease_context_communicator(context, &all, &error)
 *             || hotlease_comm_allreduce(all, in, out, 1, HOTLEASE_COMM_F64, HOTLEASE_COMM_SUM, &error))
 *             return hotlease_fail_by(error, out, capacity, produced);
 *         *produced = sizeof(double);
 *         return 0;
 *     }
 *
 * The program:
 *
 *     hotlease_gang* gang = NULL;
 *     hotlease_options options = {.struct_size = sizeof options, .workers = 4};
 *     double mine = 1, totals[4];
 *
 *     hotlease_gang_lease(code, &options, NULL, &gang, NULL);           // 4 workers, or none
 *     hotlease_gang_call(gang, "total", &mine, sizeof mine, totals, sizeof *totals, NULL, NULL);
 *     hotlease_gang_end(gang, NULL, NULL);
 *     hotlease_gang_free(gang);
 *
 * (A real program also checks for errors: see examples/10_gang. C++: gang.hpp.)
 *
 * Conventions: the conventions of hotlease.h and communicator.h, and
 *
 * 16. The ranks of a gang are the slots of its workers. In a call, each rank runs the function once, at the same time
 *     as the other ranks.
 * 17. The communicator is made in the first call in which functions ask for it (the functions of all ranks must ask).
 *     The workers keep it: later calls find it in its last state, with messages that were not received. It ends when a
 *     function fails at a rank, or a rank's worker dies. Then operations of other ranks on it fail within two seconds
 *     (HOTLEASE_MEMBER_LOST), and the next call has a new communicator.
 */
#ifndef HOTLEASE_GANG_H
#define HOTLEASE_GANG_H

#include <hotlease/communicator.h>
#include <hotlease/function.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotlease_gang hotlease_gang; /* a group of workers that run functions at the same time */

/* ---- For callers of functions ---------------------------------------------------------------------- */

/* Leases workers, all or none, and loads `code` into them. `options` may be NULL; its workers times slots is the number
 * of ranks, at most 2048. The gang sets no_new_lease and retries itself. spread_least is rejected; shared cores are
 * rejected because ranks run at the same time. `address`: the IP address of this host at which the workers' hosts reach
 * this program; ranks find each other there, and no other process is admitted. NULL: the address from which this host
 * reaches the manager, or 127.0.0.1 on the platform of this node. */
hotlease_status hotlease_gang_lease(const hotlease_code* code, const hotlease_options* options, const char* address,
                                    hotlease_gang** gang, hotlease_error** error);
/* Returns the number of ranks; 0 for NULL. */
uint32_t hotlease_gang_ranks(const hotlease_gang* gang);
/* Calls a function at all ranks with the same input, and waits for all ranks. The output of rank r starts at out + r *
 * out_capacity, and has at most `out_capacity` bytes; out_sizes[r] is its size. `out_sizes` may be NULL. Calls of
 * several threads run one after another.
 *
 * If ranks fail, the error describes the first rank that failed by itself: status, hotlease_error_rank and message. No
 * output is written then. If ranks still run five seconds after a rank has failed, the lease is ended. If workers have
 * died, the next call takes another lease, which it tries to get for patience_ms or move_within_ms. */
hotlease_status hotlease_gang_call(const hotlease_gang* gang, const char* function, const void* in, size_t in_size,
                                   void* out, size_t out_capacity, size_t* out_sizes, hotlease_error** error);
/* Calls a function at all ranks with an input for each rank: in[r], of in_sizes[r] bytes. */
hotlease_status hotlease_gang_call_each(const hotlease_gang* gang, const char* function, const void* const* in,
                                        const size_t* in_sizes, void* out, size_t out_capacity, size_t* out_sizes,
                                        hotlease_error** error);
/* Releases the workers, and waits until they are gone. `usage` gets the usage of the last lease; it may be NULL,
 * otherwise set its struct_size before. Later calls fail with HOTLEASE_LEASE_ENDED. Free the gang afterwards. */
hotlease_status hotlease_gang_end(const hotlease_gang* gang, hotlease_usage* usage, hotlease_error** error);
void hotlease_gang_free(hotlease_gang* gang);

/* ---- For authors of functions ---------------------------------------------------------------------- */

/* Returns the communicator of the ranks that run this function. In the first call in which the functions of a gang ask
 * for it, waits until all ranks have asked: 15 s at most, and only until a rank has failed.
 *
 * Call it on the thread on which the function runs; other threads may use the communicator, too, until the function
 * returns. The communicator belongs to the worker, hence const: a function does not finish it. Communicators that a
 * function makes from it (split, dup) belong to the function.
 *
 * HOTLEASE_INVALID_ARGUMENT: the function was not called on a gang. HOTLEASE_NOT_TOGETHER: some ranks have not asked;
 * the message names them. HOTLEASE_FINISHED: another function has failed on this worker. HOTLEASE_LOCAL: another
 * statically linked copy of this library has the communicator. */
hotlease_status hotlease_context_communicator(const hotlease_context* context, const hotlease_comm** communicator,
                                              hotlease_error** error);

/* Ends a function because of an error: takes the error's message, and its status as the error number. By this number
 * hotlease_gang_call distinguishes the rank that failed by itself from ranks that failed as a consequence. Frees the
 * error; NULL is an unknown error. */
static inline int32_t hotlease_fail_by(hotlease_error* error, void* out, uint64_t capacity, uint64_t* produced)
{
    const int32_t status = error == NULL ? HOTLEASE_INTERNAL : (int32_t)hotlease_error_status(error);
    const int32_t code = hotlease_fail(status, hotlease_error_message(error), out, capacity, produced);
    hotlease_error_free(error);
    return code;
}

#ifdef __cplusplus
}
#endif

#endif
