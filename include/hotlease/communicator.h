/*
 * hotlease/communicator.h: message passing between functions, or any processes, from C (C11). Link with
 * -lhotlease.
 *
 *     hotlease_comm* all = NULL;
 *     hotlease_comm_options options = {.struct_size = sizeof options, .name = "sums", .size = 4,
 *                                      .rendezvous = "node1:7072"};   // the secret is in the environment
 *
 *     hotlease_comm_join(&options, &all, NULL);                       // returns when all 4 are connected
 *     double mine = hotlease_comm_rank(all), sum = 0;
 *     hotlease_comm_allreduce(all, &mine, &sum, 1, HOTLEASE_COMM_F64, HOTLEASE_COMM_SUM, NULL);
 *     hotlease_comm_finish(all, NULL);
 *
 * (A real program also checks for errors: see docs/message-passing-in-c.md. C++: communicator.hpp. Functions on workers
 * that are leased together get their communicator from their context: gang.h.) No platform is needed, only a rendezvous
 * where members find each other: `hotlease comm rendezvous`, or hotlease_comm_rendezvous_start in any program.
 *
 * Conventions: the conventions of hotlease.h, and
 *
 * 11. Collectives (barrier ... alltoallv, split, dup, grow) are called by all members, in the same order, with counts,
 *     types and roots that match. Counts and displacements are in elements; sizes of sends and receives are in bytes.
 * 12. Memory is not copied. In a call that waits, the library uses the memory until the call returns. In a call that
 *     does not wait (`i...`), the library uses it until hotlease_comm_test has returned 1, or hotlease_comm_wait,
 *     hotlease_comm_wait_all or hotlease_comm_request_free has returned, with any status. Until then the program may
 *     read input but not write it, and may neither read nor write output. Counts, displacements and datatypes are
 *     copied at once; the library keeps operators alive.
 * 13. Input and output must not overlap. To reduce, exchange or gather data in place, pass HOTLEASE_COMM_IN_PLACE.
 * 14. Any number of threads may use communicators, operators and rendezvous at once, but only one thread at a time a
 *     request. Calls of any thread make progress on all operations, and so does the library a few times a second.
 * 15. After an error of a member (HOTLEASE_MEMBER_LOST, HOTLEASE_MEMBER_LEFT), messages between other members continue.
 *     For collectives, all remaining members call hotlease_comm_shrink.
 */
#ifndef HOTLEASE_COMMUNICATOR_H
#define HOTLEASE_COMMUNICATOR_H

#include <hotlease/hotlease.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotlease_comm hotlease_comm;                       /* communicator of one member */
typedef struct hotlease_comm_request hotlease_comm_request;       /* an operation in progress */
typedef struct hotlease_comm_operator hotlease_comm_operator;     /* operator of a reduction */
typedef struct hotlease_comm_rendezvous hotlease_comm_rendezvous; /* where members find each other */

/* ---- Errors --------------------------------------------------------------------------------------- */

/* Returns the rank of the member that failed, left, or sent data that does not match; -1 if the error is about no
 * member, and for NULL. */
int64_t hotlease_error_rank(const hotlease_error* error);
/* Returns the cause of HOTLEASE_MEMBER_LOST, HOTLEASE_OUTCAST and HOTLEASE_NOT_TOGETHER, "its connection was closed:
 * its process has ended" for instance; "" otherwise, and for NULL. (The message contains it, too.) */
const char* hotlease_error_cause(const hotlease_error* error);

/* ---- Rendezvous ----------------------------------------------------------------------------------- */

/* Starts a rendezvous on a separate thread, until it is freed. It serves members of any number of communicators, if
 * they have the same secret. `listen` is an address and port, "0.0.0.0:7072" or "[::]:7072"; port 0 is any free port.
 * The secret has at least 16 bytes, which are copied; NULL and 0: the secret in HOTLEASE_COMM_SECRET, or in the file
 * HOTLEASE_COMM_SECRET_FILE. */
hotlease_status hotlease_comm_rendezvous_start(const char* listen, const void* secret, size_t secret_size,
                                               hotlease_comm_rendezvous** rendezvous, hotlease_error** error);
/* Returns the address on which a rendezvous listens, "127.0.0.1:40123" for instance; "" for NULL. */
const char* hotlease_comm_rendezvous_address(const hotlease_comm_rendezvous* rendezvous);
/* Stops a rendezvous. Members that wait there get an error; connected members do not need the rendezvous any more. */
void hotlease_comm_rendezvous_free(hotlease_comm_rendezvous* rendezvous);

/* ---- Communicators -------------------------------------------------------------------------------- */

/* Options of a join. A field that is 0 or NULL has the value of the environment variable named beside it, else the
 * default given beside it. Name, size, secret and rendezvous are the same at all members. */
typedef struct hotlease_comm_options {
    size_t struct_size;        /* sizeof(hotlease_comm_options) */
    const char* name;          /* 1 to 128 bytes; NULL: HOTLEASE_COMM_NAME */
    const char* rendezvous;    /* "host:port"; NULL: HOTLEASE_COMM_RENDEZVOUS */
    const void* secret;        /* at least 16 bytes, which are copied and never shown; NULL: secret_file */
    size_t secret_size;        /* size of `secret` */
    const char* secret_file;   /* file with the secret; NULL: HOTLEASE_COMM_SECRET or HOTLEASE_COMM_SECRET_FILE */
    uint32_t size;             /* number of members, up to 2048; 0: HOTLEASE_COMM_SIZE */
    uint32_t has_rank;         /* 1: `rank`; 0: HOTLEASE_COMM_RANK, or any rank that is free when all have joined */
    uint32_t rank;             /* rank of this member, from 0 */
    uint32_t sealed;           /* 1: messages are encrypted; 0: they are not (identities are proved in both cases) */
    uint64_t join_timeout_ms;  /* until every member is connected; 0: 30000 */
    uint64_t failure_bound_ms; /* time within which all members learn of a member's failure, at least 100; 0: 2000 */
    uint64_t linger_ms;        /* how long finishing waits for others to read this member's messages; 0: 30000 */
    int64_t spin_us;           /* time to poll for messages before sleeping; 0: 20, -1: no polling. Members that share a
                                  processor poll for this time times their number, and yield in between */
    uint64_t eager_bytes;      /* longest message that is sent without a request, up to 262144; 0: that limit */
    uint64_t early_bytes;      /* memory for large messages that arrive while this member waits in a send; 0: 256 MiB */
    const char* address;       /* at which others reach this member; NULL: the address from which it reached the
                                  rendezvous */
    uint32_t newcomer;         /* 1: joins a communicator that grows to `size` (hotlease_comm_grow); 0: a new
                                  communicator */
    uint32_t checked;          /* 1, at all members: members compare their calls before each collective; if two calls
                                  differ, all members get an error that names the ranks, the call and its place
                                  (hotlease_comm_at); 0: no comparison, unless HOTLEASE_COMM_CHECKED is 1 */
    const char* link;          /* link of the members, the same for all: "direct", "tcp", "ofi", "redis://host:6379",
                                  "s3://bucket", "dynamodb://table", "auto:direct,redis://cache:6379" (the model
                                  chooses); NULL: HOTLEASE_COMM_LINK, or direct */
} hotlease_comm_options;

/* Meets the other members at the rendezvous, and connects with all of them. If `options` is NULL, all options are taken
 * from the environment. HOTLEASE_NOT_TOGETHER: members are missing after the timeout, or a rank or the size conflicts;
 * the message names these members. HOTLEASE_UNAVAILABLE: rendezvous, store or a member cannot be reached.
 * HOTLEASE_REFUSED: the secret differs. */
hotlease_status hotlease_comm_join(const hotlease_comm_options* options, hotlease_comm** comm,
                                   hotlease_error** error);
/* Return rank, size and name; 0, 0 and "" for NULL. */
uint32_t hotlease_comm_rank(const hotlease_comm* comm);
uint32_t hotlease_comm_size(const hotlease_comm* comm);
const char* hotlease_comm_name(const hotlease_comm* comm);
/* Returns the link of the members, without credentials: "direct", "redis://cache:6379". If `link` was "auto", the link
 * that was chosen. "" for NULL. */
const char* hotlease_comm_link(const hotlease_comm* comm);

/* `color` of members that join no part. */
#define HOTLEASE_COMM_NONE (-1)
/* Splits a communicator into parts: members with the same `color` form a part, ranked by `key` and then by their rank
 * in `comm`. With HOTLEASE_COMM_NONE, `*part` becomes NULL. Called by all members. */
hotlease_status hotlease_comm_split(const hotlease_comm* comm, int64_t color, int64_t key, hotlease_comm** part,
                                    hotlease_error** error);
/* Makes a communicator of the same members and ranks, with separate messages and collectives. Called by all members. */
hotlease_status hotlease_comm_dup(const hotlease_comm* comm, hotlease_comm** same, hotlease_error** error);
/* Makes a communicator of the remaining members, in the same order, over new connections. All remaining members call
 * it, in any state of `comm`; a member that does not call it within the join timeout is left out. Needs the rendezvous.
 *  */
hotlease_status hotlease_comm_shrink(const hotlease_comm* comm, hotlease_comm** smaller, hotlease_error** error);
/* Makes a communicator of the same members with the same ranks, followed by `joining` new members, over new
 * connections. New members call hotlease_comm_join with `newcomer`, the same name, and the new size. Called by all
 * members. Needs the rendezvous. */
hotlease_status hotlease_comm_grow(const hotlease_comm* comm, uint32_t joining, hotlease_comm** larger,
                                   hotlease_error** error);

/* Finishes; frees the communicator, with any status. (split and dup make communicators that use the same connections.)
 * For the member's last communicator on these connections, waits until everything is sent, and until other members have
 * read it or are gone, at most for `linger_ms`. HOTLEASE_NOT_READ: a member has not read everything in time. */
hotlease_status hotlease_comm_finish(hotlease_comm* comm, hotlease_error** error);
/* Finishes like hotlease_comm_finish, without reporting errors. */
void hotlease_comm_free(hotlease_comm* comm);
/* Gives up, like a member that has failed: all other members get HOTLEASE_MEMBER_LOST at once. Frees the communicator.
 *  */
void hotlease_comm_abort(hotlease_comm* comm);

/* ---- Messages ------------------------------------------------------------------------------------- */

/* As `source`: any member. As `tag`: any tag. */
#define HOTLEASE_COMM_ANY (-1)

/* Description of a message that was received, or that can be received. */
typedef struct hotlease_comm_message {
    uint32_t source; /* rank of the sender */
    uint32_t tag;    /* tag of the sender */
    uint64_t size;   /* bytes */
} hotlease_comm_message;

/* Sends, and returns when the memory may be used again: the message is on its way, or was copied. A large message is
 * sent only when its receiver asks for it, or waits in a send itself. So two members that both send first do not block
 * each other. */
hotlease_status hotlease_comm_send(const hotlease_comm* comm, const void* bytes, size_t size, uint32_t to,
                                   uint32_t tag, hotlease_error** error);
/* Receives the first message with that source and tag; `message` may be NULL. HOTLEASE_OUTPUT_TOO_LARGE: the message is
 * longer than `capacity` (hotlease_error_needed), and can still be received into a larger buffer. */
hotlease_status hotlease_comm_recv(const hotlease_comm* comm, void* bytes, size_t capacity, int64_t source,
                                   int64_t tag, hotlease_comm_message* message, hotlease_error** error);
/* Sends and receives at the same time. */
hotlease_status hotlease_comm_sendrecv(const hotlease_comm* comm, const void* bytes, size_t size, uint32_t to,
                                       uint32_t send_tag, void* into, size_t capacity, int64_t source,
                                       int64_t recv_tag, hotlease_comm_message* message, hotlease_error** error);
/* Waits for a message, and describes the message that hotlease_comm_recv would receive. */
hotlease_status hotlease_comm_probe(const hotlease_comm* comm, int64_t source, int64_t tag,
                                    hotlease_comm_message* message, hotlease_error** error);
/* Probes without waiting: `*found` becomes 1 if there is a message, 0 if not. */
hotlease_status hotlease_comm_iprobe(const hotlease_comm* comm, int64_t source, int64_t tag, int* found,
                                     hotlease_comm_message* message, hotlease_error** error);

/* Start to send and to receive. Convention 12 says how long the library uses the memory. */
hotlease_status hotlease_comm_isend(const hotlease_comm* comm, const void* bytes, size_t size, uint32_t to,
                                    uint32_t tag, hotlease_comm_request** request, hotlease_error** error);
hotlease_status hotlease_comm_irecv(const hotlease_comm* comm, void* bytes, size_t capacity, int64_t source,
                                    int64_t tag, hotlease_comm_request** request, hotlease_error** error);

/* ---- Requests ------------------------------------------------------------------------------------- */

/* Returns 1 if the operation has ended, so that hotlease_comm_wait returns at once; 0 if not. Makes progress. Returns 1
 * for NULL. */
int hotlease_comm_test(hotlease_comm_request* request);
/* Waits for the end of the operation, and frees the request, with any status. `message`, which may be NULL, describes a
 * received message. */
hotlease_status hotlease_comm_wait(hotlease_comm_request* request, hotlease_comm_message* message,
                                   hotlease_error** error);
/* Waits for all requests, and frees them: their entries become NULL. Entries that are NULL are skipped. `messages` is
 * NULL, or has `count` entries, in which received messages are described. Returns the first failure, when all requests
 * have ended. */
hotlease_status hotlease_comm_wait_all(hotlease_comm_request** requests, size_t count,
                                       hotlease_comm_message* messages, hotlease_error** error);
/* Waits until a request has ended, and frees none. `*index` is the index of the first ended request: hotlease_comm_wait
 * returns at once for it. Wait for this request, and set its entry to NULL, before the next call. Entries that are NULL
 * are skipped; if all entries are NULL, `*index` is `count`. */
hotlease_status hotlease_comm_wait_any(hotlease_comm_request* const* requests, size_t count, size_t* index,
                                       hotlease_error** error);
/* Cancels the operation if possible: a receive without a matching message, or a send that has not started. Returns 1 if
 * the operation was cancelled; then hotlease_comm_wait returns HOTLEASE_CANCELLED. Returns 0 if not, and for NULL. */
int hotlease_comm_cancel(hotlease_comm_request* request);
/* Gives the operation up: cancels it if possible, otherwise takes the memory back before the operation has ended. In
 * the second case, dependent operations of other members fail: the receiver of a message loses its connection, and a
 * collective ends with an error at all members. Does not wait. */
void hotlease_comm_request_free(hotlease_comm_request* request);

/* ---- Datatypes and operators ---------------------------------------------------------------------- */

/* Type of the elements of a buffer, in the byte order of the node. Buffers need not be aligned to it. */
typedef uint64_t hotlease_comm_datatype;
enum {
    HOTLEASE_COMM_I8 = 1,
    HOTLEASE_COMM_U8 = 2,
    HOTLEASE_COMM_I16 = 3,
    HOTLEASE_COMM_U16 = 4,
    HOTLEASE_COMM_I32 = 5,
    HOTLEASE_COMM_U32 = 6,
    HOTLEASE_COMM_I64 = 7,
    HOTLEASE_COMM_U64 = 8,
    HOTLEASE_COMM_F32 = 9,
    HOTLEASE_COMM_F64 = 10,
    HOTLEASE_COMM_COMPLEX64 = 11,  /* two floats: real and imaginary part */
    HOTLEASE_COMM_COMPLEX128 = 12, /* two doubles */
    HOTLEASE_COMM_BOOL = 13,       /* one byte; 0 is false, any other value is true */
    HOTLEASE_COMM_BYTES = 14,      /* single bytes that are not numbers */
    HOTLEASE_COMM_I32_INDEX = 15,  /* struct { int32_t value; int32_t index; }, for MINLOC and MAXLOC */
    HOTLEASE_COMM_I64_INDEX = 16,  /* struct { int64_t value; int32_t index; } */
    HOTLEASE_COMM_F32_INDEX = 17,  /* struct { float value; int32_t index; } */
    HOTLEASE_COMM_F64_INDEX = 18   /* struct { double value; int32_t index; } */
};
/* A record of 1 to 4294967295 bytes, which is sent as a whole: a struct of the program. Only user-defined operators can
 * reduce it. */
#define HOTLEASE_COMM_RECORD(size) (((hotlease_comm_datatype)1 << 32) + (hotlease_comm_datatype)(size))

/* The built-in operators. Sums and products of integers wrap around at their size. The minimum or maximum of floats is
 * NaN if an operand is NaN. MINLOC and MAXLOC return the lowest index that has the value. A combination of operator and
 * type that does not exist, such as the sum of truth values, gives HOTLEASE_INVALID_ARGUMENT. */
#define HOTLEASE_COMM_SUM ((const hotlease_comm_operator*)1)
#define HOTLEASE_COMM_PROD ((const hotlease_comm_operator*)2)
#define HOTLEASE_COMM_MIN ((const hotlease_comm_operator*)3)
#define HOTLEASE_COMM_MAX ((const hotlease_comm_operator*)4)
#define HOTLEASE_COMM_BIT_AND ((const hotlease_comm_operator*)5)
#define HOTLEASE_COMM_BIT_OR ((const hotlease_comm_operator*)6)
#define HOTLEASE_COMM_BIT_XOR ((const hotlease_comm_operator*)7)
#define HOTLEASE_COMM_LOGICAL_AND ((const hotlease_comm_operator*)8)
#define HOTLEASE_COMM_LOGICAL_OR ((const hotlease_comm_operator*)9)
#define HOTLEASE_COMM_LOGICAL_XOR ((const hotlease_comm_operator*)10)
#define HOTLEASE_COMM_MINLOC ((const hotlease_comm_operator*)11)
#define HOTLEASE_COMM_MAXLOC ((const hotlease_comm_operator*)12)

/* Computes `second[i] = first[i] op second[i]` for `count` elements; must be associative. Both arrays are aligned for
 * their type. Returns 0, or another number for a failure: the collective then fails, with this number in the message.
 * Any thread that waits may call the function, and for several collectives several threads at once. The function must
 * not throw, and must not call functions on the communicator. */
typedef int (*hotlease_comm_function)(void* user, const void* first, void* second, size_t count,
                                      hotlease_comm_datatype datatype);
/* Makes an operator of a function. `commutes` is 1 if the order of the operands does not matter, which is faster; with
 * 0 the operands are in rank order. `release`, unless NULL, is called with `user` when `user` is not needed any more:
 * the operator was freed and its collectives have ended, or this call fails. */
hotlease_status hotlease_comm_operator_create(hotlease_comm_function function, void* user,
                                              void (*release)(void* user), int commutes,
                                              hotlease_comm_operator** made, hotlease_error** error);
/* Frees an operator; ignores built-in operators. */
void hotlease_comm_operator_free(hotlease_comm_operator* made);

/* ---- Collectives ---------------------------------------------------------------------------------- */

/* Passed as `input`: this rank's contribution is already in `output`, at the place of its block, or of the result. In
 * gather, gatherv and reduce, only the root may pass it. In scatter and scatterv, the root may pass it as `output`: its
 * block stays in `input`. One rank may pass it while other ranks do not. */
#define HOTLEASE_COMM_IN_PLACE ((void*)-1)

/* The calls take the arguments of MPI's calls, but only one datatype. Memory without elements may be NULL, for instance
 * the output of ranks that get nothing. Displacements may be NULL: blocks then follow one another. */

/* Sets the source location that errors of checked mode name for the collectives that this thread calls from now on.
 * `place` is copied; NULL: unknown. */
void hotlease_comm_at(const char* place);

/* Returns when all members have called it. */
hotlease_status hotlease_comm_barrier(const hotlease_comm* comm, hotlease_error** error);
/* Copies the root's buffer to all members. */
hotlease_status hotlease_comm_broadcast(const hotlease_comm* comm, void* buffer, size_t count,
                                        hotlease_comm_datatype datatype, uint32_t root, hotlease_error** error);
/* Collects `count` elements of each rank in the root's output, in rank order. */
hotlease_status hotlease_comm_gather(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                     hotlease_comm_datatype datatype, uint32_t root, hotlease_error** error);
/* As hotlease_comm_gather, with `counts[i]` elements of rank i at `displacements[i]`. Only the root's counts and
 * displacements are used. */
hotlease_status hotlease_comm_gatherv(const hotlease_comm* comm, const void* input, size_t count, void* output,
                                      const size_t* counts, const size_t* displacements,
                                      hotlease_comm_datatype datatype, uint32_t root, hotlease_error** error);
/* Sends block i of the root's input to rank i; each block has `count` elements. */
hotlease_status hotlease_comm_scatter(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                      hotlease_comm_datatype datatype, uint32_t root, hotlease_error** error);
/* As hotlease_comm_scatter, with `counts[i]` elements at `displacements[i]` for rank i. Only the root's counts and
 * displacements are used. */
hotlease_status hotlease_comm_scatterv(const hotlease_comm* comm, const void* input, const size_t* counts,
                                       const size_t* displacements, void* output, size_t count,
                                       hotlease_comm_datatype datatype, uint32_t root, hotlease_error** error);
/* Collects `count` elements of each rank at all ranks, in rank order. */
hotlease_status hotlease_comm_allgather(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                        hotlease_comm_datatype datatype, hotlease_error** error);
/* As hotlease_comm_allgather, with `counts[i]` elements of rank i at `displacements[i]`. All ranks pass equal counts.
 *  */
hotlease_status hotlease_comm_allgatherv(const hotlease_comm* comm, const void* input, void* output,
                                         const size_t* counts, const size_t* displacements,
                                         hotlease_comm_datatype datatype, hotlease_error** error);
/* Reduces all inputs, of `count` elements each, to the root. */
hotlease_status hotlease_comm_reduce(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                     hotlease_comm_datatype datatype, const hotlease_comm_operator* op,
                                     uint32_t root, hotlease_error** error);
/* Reduces all inputs; all ranks get the same result, bit for bit. */
hotlease_status hotlease_comm_allreduce(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                        hotlease_comm_datatype datatype, const hotlease_comm_operator* op,
                                        hotlease_error** error);
/* Reduces all inputs; rank i gets block i of the result, which has `counts[i]` elements. Each input has all blocks, one
 * after another. In place, `output` has all blocks before the call, and the rank's result at its beginning afterwards.
 *  */
hotlease_status hotlease_comm_reduce_scatter(const hotlease_comm* comm, const void* input, void* output,
                                             const size_t* counts, hotlease_comm_datatype datatype,
                                             const hotlease_comm_operator* op, hotlease_error** error);
/* As hotlease_comm_reduce_scatter, with `count` elements for each rank. */
hotlease_status hotlease_comm_reduce_scatter_block(const hotlease_comm* comm, const void* input, void* output,
                                                   size_t count, hotlease_comm_datatype datatype,
                                                   const hotlease_comm_operator* op, hotlease_error** error);
/* Reduces, for each rank, the inputs of this rank and all ranks before it. */
hotlease_status hotlease_comm_scan(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                   hotlease_comm_datatype datatype, const hotlease_comm_operator* op,
                                   hotlease_error** error);
/* Reduces, for each rank, the inputs of all ranks before it; does not change the output of rank 0. */
hotlease_status hotlease_comm_exscan(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                     hotlease_comm_datatype datatype, const hotlease_comm_operator* op,
                                     hotlease_error** error);
/* Sends block i of each rank's input to rank i; block j of the output is from rank j. Blocks have `count` elements. */
hotlease_status hotlease_comm_alltoall(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                       hotlease_comm_datatype datatype, hotlease_error** error);
/* As hotlease_comm_alltoall, with blocks of any length: what rank i sends to rank j must be as long as what j expects
 * from i. In place, the sent counts and displacements are ignored, and may be NULL. */
hotlease_status hotlease_comm_alltoallv(const hotlease_comm* comm, const void* input, const size_t* sent_counts,
                                        const size_t* sent_displacements, void* output,
                                        const size_t* received_counts, const size_t* received_displacements,
                                        hotlease_comm_datatype datatype, hotlease_error** error);

/* Start the collectives above without waiting. Members start all collectives in the same order, but may wait for them
 * in any order. Convention 12 says how long the library uses the memory. */
hotlease_status hotlease_comm_ibarrier(const hotlease_comm* comm, hotlease_comm_request** request,
                                       hotlease_error** error);
hotlease_status hotlease_comm_ibroadcast(const hotlease_comm* comm, void* buffer, size_t count,
                                         hotlease_comm_datatype datatype, uint32_t root,
                                         hotlease_comm_request** request, hotlease_error** error);
hotlease_status hotlease_comm_igather(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                      hotlease_comm_datatype datatype, uint32_t root,
                                      hotlease_comm_request** request, hotlease_error** error);
hotlease_status hotlease_comm_igatherv(const hotlease_comm* comm, const void* input, size_t count,
                                       void* output, const size_t* counts, const size_t* displacements,
                                       hotlease_comm_datatype datatype, uint32_t root,
                                       hotlease_comm_request** request, hotlease_error** error);
hotlease_status hotlease_comm_iscatter(const hotlease_comm* comm, const void* input, void* output,
                                       size_t count, hotlease_comm_datatype datatype, uint32_t root,
                                       hotlease_comm_request** request, hotlease_error** error);
hotlease_status hotlease_comm_iscatterv(const hotlease_comm* comm, const void* input, const size_t* counts,
                                        const size_t* displacements, void* output, size_t count,
                                        hotlease_comm_datatype datatype, uint32_t root,
                                        hotlease_comm_request** request, hotlease_error** error);
hotlease_status hotlease_comm_iallgather(const hotlease_comm* comm, const void* input, void* output,
                                         size_t count, hotlease_comm_datatype datatype,
                                         hotlease_comm_request** request, hotlease_error** error);
hotlease_status hotlease_comm_iallgatherv(const hotlease_comm* comm, const void* input, void* output,
                                          const size_t* counts, const size_t* displacements,
                                          hotlease_comm_datatype datatype, hotlease_comm_request** request,
                                          hotlease_error** error);
hotlease_status hotlease_comm_ireduce(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                      hotlease_comm_datatype datatype, const hotlease_comm_operator* op,
                                      uint32_t root, hotlease_comm_request** request, hotlease_error** error);
hotlease_status hotlease_comm_iallreduce(const hotlease_comm* comm, const void* input, void* output,
                                         size_t count, hotlease_comm_datatype datatype,
                                         const hotlease_comm_operator* op, hotlease_comm_request** request,
                                         hotlease_error** error);
hotlease_status hotlease_comm_ireduce_scatter(const hotlease_comm* comm, const void* input, void* output,
                                              const size_t* counts, hotlease_comm_datatype datatype,
                                              const hotlease_comm_operator* op,
                                              hotlease_comm_request** request, hotlease_error** error);
hotlease_status hotlease_comm_ireduce_scatter_block(const hotlease_comm* comm, const void* input, void* output,
                                                    size_t count, hotlease_comm_datatype datatype,
                                                    const hotlease_comm_operator* op,
                                                    hotlease_comm_request** request, hotlease_error** error);
hotlease_status hotlease_comm_iscan(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                    hotlease_comm_datatype datatype, const hotlease_comm_operator* op,
                                    hotlease_comm_request** request, hotlease_error** error);
hotlease_status hotlease_comm_iexscan(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                      hotlease_comm_datatype datatype, const hotlease_comm_operator* op,
                                      hotlease_comm_request** request, hotlease_error** error);
hotlease_status hotlease_comm_ialltoall(const hotlease_comm* comm, const void* input, void* output,
                                        size_t count, hotlease_comm_datatype datatype,
                                        hotlease_comm_request** request, hotlease_error** error);
hotlease_status hotlease_comm_ialltoallv(const hotlease_comm* comm, const void* input,
                                         const size_t* sent_counts, const size_t* sent_displacements,
                                         void* output, const size_t* received_counts,
                                         const size_t* received_displacements, hotlease_comm_datatype datatype,
                                         hotlease_comm_request** request, hotlease_error** error);

#ifdef __cplusplus
}
#endif

#endif
