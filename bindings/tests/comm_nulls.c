/* NULL and nonsense give errors, not crashes: the functions of communicator.h and gang.h, without a communicator. */

#include <hotlease/gang.h>

#include "check.h"

#include <string.h>

/* Checks that the call was rejected as a bad argument, with an error that names it. */
static void refused(hotlease_status status, hotlease_error* error, const char* word)
{
    CHECK(status == HOTLEASE_INVALID_ARGUMENT);
    CHECK(hotlease_error_status(error) == status);
    CHECK(hotlease_error_rank(error) == -1 && strcmp(hotlease_error_cause(error), "") == 0);
    CHECK(strstr(hotlease_error_message(error), word) != NULL);
    hotlease_error_free(error);
}
#define REFUSED(call, word)              \
    do {                                 \
        hotlease_error* error = NULL;    \
        hotlease_status status = (call); \
        refused(status, error, word);    \
    } while (0)
/* Checks both forms of a collective. */
#define REFUSED_BOTH(name, ...)                                                              \
    do {                                                                                     \
        hotlease_comm_request* request = NULL;                                               \
        REFUSED(hotlease_comm_##name(NULL, __VA_ARGS__, &error), "comm is NULL");            \
        REFUSED(hotlease_comm_i##name(NULL, __VA_ARGS__, &request, &error), "comm is NULL"); \
        CHECK(request == NULL);                                                              \
    } while (0)

static int released;
static void release(void* user)
{
    released += *(int*)user;
}
static int function(void* user, const void* first, void* second, size_t count, hotlease_comm_datatype datatype)
{
    (void)user, (void)first, (void)second, (void)count, (void)datatype;
    return 0;
}

int main(void)
{
    hotlease_comm* comm = NULL;
    hotlease_comm_request* request = NULL;
    hotlease_comm_rendezvous* rendezvous = NULL;
    hotlease_comm_operator* made = NULL;
    hotlease_comm_message message = {7, 7, 7};
    char bytes[8] = {0};
    int found = 77, one = 1;
    size_t count = 0;
    hotlease_context context = {.struct_size = sizeof context};
    const hotlease_comm_datatype type = HOTLEASE_COMM_I64;
    const hotlease_comm_operator* sum = HOTLEASE_COMM_SUM;

    REFUSED(hotlease_comm_join(NULL, NULL, &error), "comm is NULL");
    REFUSED(hotlease_comm_rendezvous_start(NULL, "0123456789abcdef", 16, &rendezvous, &error),
            "listen is NULL");
    REFUSED(hotlease_comm_rendezvous_start("x:1", "0123456789abcdef", 16, NULL, &error), "rendezvous is NULL");
    REFUSED(hotlease_comm_rendezvous_start("x:1", NULL, 16, &rendezvous, &error), "secret is NULL");
    REFUSED(hotlease_comm_split(NULL, 0, 0, &comm, &error), "comm is NULL");
    REFUSED(hotlease_comm_split(NULL, 0, 0, NULL, &error), "part is NULL");
    REFUSED(hotlease_comm_dup(NULL, &comm, &error), "comm is NULL");
    REFUSED(hotlease_comm_shrink(NULL, &comm, &error), "comm is NULL");
    REFUSED(hotlease_comm_grow(NULL, 1, &comm, &error), "comm is NULL");
    REFUSED(hotlease_comm_finish(NULL, &error), "comm is NULL");
    REFUSED(hotlease_comm_send(NULL, bytes, 8, 0, 0, &error), "comm is NULL");
    REFUSED(hotlease_comm_recv(NULL, bytes, 8, 0, 0, &message, &error), "comm is NULL");
    REFUSED(hotlease_comm_sendrecv(NULL, bytes, 4, 0, 0, bytes + 4, 4, 0, 0, &message, &error), "comm is NULL");
    REFUSED(hotlease_comm_probe(NULL, 0, 0, &message, &error), "comm is NULL");
    REFUSED(hotlease_comm_iprobe(NULL, 0, 0, &found, &message, &error), "comm is NULL");
    REFUSED(hotlease_comm_isend(NULL, bytes, 8, 0, 0, &request, &error), "comm is NULL");
    REFUSED(hotlease_comm_irecv(NULL, bytes, 8, 0, 0, &request, &error), "comm is NULL");
    REFUSED(hotlease_comm_wait(NULL, &message, &error), "request is NULL");
    REFUSED(hotlease_comm_wait_all(NULL, 1, NULL, &error), "requests is NULL");
    REFUSED(hotlease_comm_wait_any(NULL, 1, &count, &error), "requests is NULL");
    REFUSED(hotlease_comm_wait_any(NULL, 0, NULL, &error), "index is NULL");
    REFUSED(hotlease_comm_barrier(NULL, &error), "comm is NULL");
    REFUSED(hotlease_comm_ibarrier(NULL, &request, &error), "comm is NULL");
    REFUSED_BOTH(broadcast, bytes, 1, type, 0);
    REFUSED_BOTH(gather, bytes, bytes, 1, type, 0);
    REFUSED_BOTH(gatherv, bytes, 1, bytes, NULL, NULL, type, 0);
    REFUSED_BOTH(scatter, bytes, bytes, 1, type, 0);
    REFUSED_BOTH(scatterv, bytes, NULL, NULL, bytes, 1, type, 0);
    REFUSED_BOTH(allgather, bytes, bytes, 1, type);
    REFUSED_BOTH(allgatherv, bytes, bytes, NULL, NULL, type);
    REFUSED_BOTH(reduce, bytes, bytes, 1, type, sum, 0);
    REFUSED_BOTH(allreduce, bytes, bytes, 1, type, sum);
    REFUSED_BOTH(reduce_scatter, bytes, bytes, NULL, type, sum);
    REFUSED_BOTH(reduce_scatter_block, bytes, bytes, 1, type, sum);
    REFUSED_BOTH(scan, bytes, bytes, 1, type, sum);
    REFUSED_BOTH(exscan, bytes, bytes, 1, type, sum);
    REFUSED_BOTH(alltoall, bytes, bytes, 1, type);
    REFUSED_BOTH(alltoallv, bytes, NULL, NULL, bytes, NULL, NULL, type);
    CHECK(comm == NULL && request == NULL && rendezvous == NULL && found == 77 && message.size == 7);

    hotlease_gang* gang = NULL;
    const hotlease_comm* all = NULL;
    REFUSED(hotlease_gang_lease(NULL, NULL, NULL, &gang, &error), "code is NULL");
    REFUSED(hotlease_gang_lease(NULL, NULL, NULL, NULL, &error), "gang is NULL");
    REFUSED(hotlease_gang_call(NULL, "f", NULL, 0, NULL, 0, NULL, &error), "gang is NULL");
    REFUSED(hotlease_gang_call_each(NULL, "f", NULL, NULL, NULL, 0, NULL, &error), "gang is NULL");
    REFUSED(hotlease_gang_end(NULL, NULL, &error), "gang is NULL");
    REFUSED(hotlease_context_communicator(NULL, &all, &error), "context is NULL");
    REFUSED(hotlease_context_communicator(&context, NULL, &error), "communicator is NULL");
    REFUSED(hotlease_context_communicator(&context, &all, &error), "runs alone");
    CHECK(gang == NULL && all == NULL && hotlease_gang_ranks(NULL) == 0);
    hotlease_gang_free(NULL);

    /* The `user` pointer of an operator is released in any case. */
    REFUSED(hotlease_comm_operator_create(NULL, &one, release, 0, &made, &error), "function is NULL");
    REFUSED(hotlease_comm_operator_create(function, &one, release, 0, NULL, &error), "made is NULL");
    CHECK(released == 2 && made == NULL);
    CHECK(hotlease_comm_operator_create(function, &one, release, 0, &made, NULL) == HOTLEASE_OK);
    hotlease_comm_operator_free(made);
    CHECK(released == 3);
    hotlease_comm_operator_free(NULL);
    hotlease_comm_operator_free((hotlease_comm_operator*)HOTLEASE_COMM_SUM);

    CHECK(hotlease_comm_rank(NULL) == 0 && hotlease_comm_size(NULL) == 0);
    CHECK(strcmp(hotlease_comm_link(NULL), "") == 0);
    CHECK(strcmp(hotlease_comm_name(NULL), "") == 0 && strcmp(hotlease_comm_rendezvous_address(NULL), "") == 0);
    CHECK(hotlease_comm_test(NULL) == 1 && hotlease_comm_cancel(NULL) == 0);
    CHECK(hotlease_error_rank(NULL) == -1 && strcmp(hotlease_error_cause(NULL), "") == 0);
    CHECK(strcmp(hotlease_status_name(HOTLEASE_MEMBER_LOST), "member lost") == 0);
    hotlease_comm_at(NULL);
    hotlease_comm_free(NULL);
    hotlease_comm_abort(NULL);
    hotlease_comm_request_free(NULL);
    hotlease_comm_rendezvous_free(NULL);
    return checks_done();
}
