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
 * (Without the checks that a program has: see docs/message-passing-in-c.md. C++: communicator.hpp. Functions on workers that are
 * leased together get their communicator from their context: gang.h.) No platform is
 * needed, only a rendezvous where members find each other: `hotlease comm rendezvous`, or
 * hotlease_comm_rendezvous_start in any program.
 *
 * Conventions: those of hotlease.h. Besides
 *
 * 11. What all members do together (barrier ... alltoallv, split, dup, grow) all of them call, in the same
 *     order, with counts, types and roots that fit. Counts and displacements are in elements, of sends and
 *     receives in bytes.
 * 12. Memory is not copied. In a call that waits it is the library's until the call returns. In one that does
 *     not (`i...`) it is the library's until hotlease_comm_test has given 1, or hotlease_comm_wait,
 *     hotlease_comm_wait_all or hotlease_comm_request_free has returned, whatever they say: input may be read
 *     but not written until then, output neither. Counts, displacements and datatypes are copied at once, and
 *     operators kept.
 * 13. Input and output must not overlap. What is reduced, exchanged or gathered where it stands is given as
 *     HOTLEASE_COMM_IN_PLACE.
 * 14. Communicators, operators and rendezvous may be used by any number of threads at once; a request by one
 *     thread at a time. Progress is made in the calls of any thread, and a few times a second besides.
 * 15. After an error of a member (HOTLEASE_MEMBER_LOST, HOTLEASE_MEMBER_LEFT) messages between others go on;
 *     everybody goes on together by hotlease_comm_shrink.
 */
#ifndef HOTLEASE_COMMUNICATOR_H
#define HOTLEASE_COMMUNICATOR_H

#include <hotlease/hotlease.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotlease_comm hotlease_comm;                       /* a communicator, as one member has it */
typedef struct hotlease_comm_request hotlease_comm_request;       /* an operation that goes on */
typedef struct hotlease_comm_operator hotlease_comm_operator;     /* what a reduction does with two elements */
typedef struct hotlease_comm_rendezvous hotlease_comm_rendezvous; /* where members find each other */

/* ---- Errors --------------------------------------------------------------------------------------- */

/* The rank of the member that a communicator's error is about: who has failed, left, or sent what does not
 * fit; -1 if it is about none, or about no communicator. Takes NULL. */
int64_t hotlease_error_rank(const hotlease_error* error);
/* HOTLEASE_MEMBER_LOST, HOTLEASE_OUTCAST and HOTLEASE_NOT_TOGETHER: why, "its connection was closed: its
 * process has ended" for instance; "" otherwise, and for NULL. (The message has it, too.) */
const char* hotlease_error_cause(const hotlease_error* error);

/* ---- Rendezvous ----------------------------------------------------------------------------------- */

/* Serves members that have this secret, of any number of communicators, on a thread of its own, until it is
 * freed. `listen` is an address and port, "0.0.0.0:7072" or "[::]:7072"; port 0 is any free one. The secret
 * has at least 16 bytes, which are copied; NULL and 0: that of HOTLEASE_COMM_SECRET, or of the file
 * HOTLEASE_COMM_SECRET_FILE. */
hotlease_status hotlease_comm_rendezvous_start(const char* listen, const void* secret, size_t secret_size,
                                               hotlease_comm_rendezvous** rendezvous, hotlease_error** error);
/* Where it listens, "127.0.0.1:40123" for instance; "" for NULL. */
const char* hotlease_comm_rendezvous_address(const hotlease_comm_rendezvous* rendezvous);
/* Stops it. Members that wait there are told; those that are connected do not need it any more. */
void hotlease_comm_rendezvous_free(hotlease_comm_rendezvous* rendezvous);

/* ---- Communicators -------------------------------------------------------------------------------- */

/* How to join. What is 0 or NULL is as the environment says, where a variable is named, or else as stands
 * beside it. Name, size, secret and rendezvous are the same at all members. */
typedef struct hotlease_comm_options {
    size_t struct_size;        /* sizeof(hotlease_comm_options) */
    const char* name;          /* 1 to 128 bytes; NULL: HOTLEASE_COMM_NAME */
    const char* rendezvous;    /* "host:port"; NULL: HOTLEASE_COMM_RENDEZVOUS */
    const void* secret;        /* at least 16 bytes, which are copied and never shown; NULL: secret_file */
    size_t secret_size;        /* how many */
    const char* secret_file;   /* with the secret; NULL: HOTLEASE_COMM_SECRET or HOTLEASE_COMM_SECRET_FILE */
    uint32_t size;             /* how many members there are, up to 2048; 0: HOTLEASE_COMM_SIZE */
    uint32_t has_rank;         /* 1: `rank`; 0: HOTLEASE_COMM_RANK, or whichever is left when all have come */
    uint32_t rank;             /* of this member, from 0 */
    uint32_t sealed;           /* 1: what members send is encrypted; 0: it is not (who they are is proved) */
    uint64_t join_timeout_ms;  /* until every member is connected; 0: 30000 */
    uint64_t failure_bound_ms; /* in which a member's failure is known to all others, at least 100; 0: 2000 */
    uint64_t linger_ms;        /* how long finishing waits for others to read what this member sent; 0: 30000 */
    int64_t spin_us;           /* looks for news before sleeping until there are some; 0: 20, -1: not at all. Where members share processors,
                                  each for its share, giving way in between */
    uint64_t eager_bytes;      /* longest message that is sent unasked, up to 262144; 0: that */
    uint64_t early_bytes;      /* for large messages that come while this one waits in a send; 0: 256 MiB */
    const char* address;       /* at which others reach this member; NULL: as it reached the rendezvous */
    uint32_t newcomer;         /* 1: joins one that grows to `size` (hotlease_comm_grow); 0: one that begins */
    uint32_t checked;          /* 1, at all members: they compare what they call before each collective, and
                                  where two differ all get an error that says who, what and where
                                  (hotlease_comm_at); 0: they do not, unless HOTLEASE_COMM_CHECKED is 1 */
    const char* link;          /* what members talk over, the same for all: "direct", "tcp", "ofi", "redis://host:6379",
                                  "s3://bucket", "dynamodb://table", "auto:direct,redis://cache:6379" (the model
                                  chooses); NULL: HOTLEASE_COMM_LINK, or direct */
} hotlease_comm_options;

/* Meets the other members at the rendezvous, and connects with all of them; `options` may be NULL: all of the
 * environment. HOTLEASE_NOT_TOGETHER names who is missing when the time is over, or the rank or size that is
 * another's; HOTLEASE_UNAVAILABLE: no rendezvous or store, or a member that is not reached; HOTLEASE_REFUSED: another
 * secret. */
hotlease_status hotlease_comm_join(const hotlease_comm_options* options, hotlease_comm** comm,
                                   hotlease_error** error);
/* 0, 0 and "" for NULL. */
uint32_t hotlease_comm_rank(const hotlease_comm* comm);
uint32_t hotlease_comm_size(const hotlease_comm* comm);
const char* hotlease_comm_name(const hotlease_comm* comm);
/* What members talk over, without credentials: "direct", "redis://cache:6379". Where `link` was "auto", what was
 * chosen. "" for NULL. */
const char* hotlease_comm_link(const hotlease_comm* comm);

/* `color` of who takes part in no part. */
#define HOTLEASE_COMM_NONE (-1)
/* Parts this communicator: members of one `color` are one, ranked by `key` and then by rank here. With
 * HOTLEASE_COMM_NONE, `*part` becomes NULL. Called by all members. */
hotlease_status hotlease_comm_split(const hotlease_comm* comm, int64_t color, int64_t key, hotlease_comm** part,
                                    hotlease_error** error);
/* The same members and ranks, with messages and collectives of their own. Called by all members. */
hotlease_status hotlease_comm_dup(const hotlease_comm* comm, hotlease_comm** same, hotlease_error** error);
/* The members that are left, in the same order, over new connections. All of them call it, whatever state
 * this communicator is in; who has not come within the join timeout is left behind. Needs the rendezvous. */
hotlease_status hotlease_comm_shrink(const hotlease_comm* comm, hotlease_comm** smaller, hotlease_error** error);
/* The same members with the same ranks, and behind them `joining` new ones, over new connections. New ones
 * call hotlease_comm_join with `newcomer`, the same name, and the size that it grows to. Called by all
 * members. Needs the rendezvous. */
hotlease_status hotlease_comm_grow(const hotlease_comm* comm, uint32_t joining, hotlease_comm** larger,
                                   hotlease_error** error);

/* Finishes; frees the communicator, whatever is returned. The last one that a member has on its connections
 * (split and dup make others on the same) waits until everything is sent, and until others have read it or
 * are gone, at most for `linger_ms`. HOTLEASE_NOT_READ: somebody has not read everything in time. */
hotlease_status hotlease_comm_finish(hotlease_comm* comm, hotlease_error** error);
/* The same for who does not want to know. */
void hotlease_comm_free(hotlease_comm* comm);
/* Gives up, as a member that has failed: all others learn it at once, as HOTLEASE_MEMBER_LOST. Frees the
 * communicator. */
void hotlease_comm_abort(hotlease_comm* comm);

/* ---- Messages ------------------------------------------------------------------------------------- */

/* As `source`: of any member. As `tag`: with any tag. */
#define HOTLEASE_COMM_ANY (-1)

/* What was received, or could be. */
typedef struct hotlease_comm_message {
    uint32_t source; /* who sent it */
    uint32_t tag;    /* the sender's */
    uint64_t size;   /* bytes */
} hotlease_comm_message;

/* Sends, and returns when the memory may be used again: the message is on its way, or has been taken. A large
 * one is not before its receiver asks for it, or waits in a send itself: so two that both send first go on.
 * */
hotlease_status hotlease_comm_send(const hotlease_comm* comm, const void* bytes, size_t size, uint32_t to,
                                   uint32_t tag, hotlease_error** error);
/* Receives the first message of that source and tag; `message` may be NULL. HOTLEASE_OUTPUT_TOO_LARGE: it is
 * longer than `capacity` (hotlease_error_needed), and waits to be received with more. */
hotlease_status hotlease_comm_recv(const hotlease_comm* comm, void* bytes, size_t capacity, int64_t source,
                                   int64_t tag, hotlease_comm_message* message, hotlease_error** error);
/* Both at once. */
hotlease_status hotlease_comm_sendrecv(const hotlease_comm* comm, const void* bytes, size_t size, uint32_t to,
                                       uint32_t send_tag, void* into, size_t capacity, int64_t source,
                                       int64_t recv_tag, hotlease_comm_message* message, hotlease_error** error);
/* Waits for a message and says what hotlease_comm_recv would receive. */
hotlease_status hotlease_comm_probe(const hotlease_comm* comm, int64_t source, int64_t tag,
                                    hotlease_comm_message* message, hotlease_error** error);
/* The same without waiting: `*found` becomes 1 if there is one, 0 if not. */
hotlease_status hotlease_comm_iprobe(const hotlease_comm* comm, int64_t source, int64_t tag, int* found,
                                     hotlease_comm_message* message, hotlease_error** error);

/* Begin to send and to receive. Whose the memory is until when: convention 12. */
hotlease_status hotlease_comm_isend(const hotlease_comm* comm, const void* bytes, size_t size, uint32_t to,
                                    uint32_t tag, hotlease_comm_request** request, hotlease_error** error);
hotlease_status hotlease_comm_irecv(const hotlease_comm* comm, void* bytes, size_t capacity, int64_t source,
                                    int64_t tag, hotlease_comm_request** request, hotlease_error** error);

/* ---- Requests ------------------------------------------------------------------------------------- */

/* 1 if the operation has ended, so that hotlease_comm_wait returns at once; 0 if not. Makes progress; 1 for
 * NULL. */
int hotlease_comm_test(hotlease_comm_request* request);
/* Waits for the end of the operation, and frees the request, whatever is returned. `message`, which may be
 * NULL, tells what a receive has received. */
hotlease_status hotlease_comm_wait(hotlease_comm_request* request, hotlease_comm_message* message,
                                   hotlease_error** error);
/* Waits for all, and frees them: the entries become NULL. Those that are NULL are passed over. `messages` is
 * NULL, or has as many entries; those of receives are written. Returns the first failure, when all have
 * ended. */
hotlease_status hotlease_comm_wait_all(hotlease_comm_request** requests, size_t count,
                                       hotlease_comm_message* messages, hotlease_error** error);
/* Waits until one of them has ended, and frees none: `*index` is the first one's, for which hotlease_comm_wait
 * returns at once, and which is to be waited for, and become NULL, before the next call. Entries that are NULL
 * are passed over; if all are, `*index` is `count`. */
hotlease_status hotlease_comm_wait_any(hotlease_comm_request* const* requests, size_t count, size_t* index,
                                       hotlease_error** error);
/* Cancels the operation if that is possible: a receive that nothing has come for, or a send that has not
 * begun. 1 if it was; hotlease_comm_wait returns HOTLEASE_CANCELLED then. 0 if not, and for NULL. */
int hotlease_comm_cancel(hotlease_comm_request* request);
/* Gives up: cancels it if that is possible, and otherwise takes its memory back in the middle. What others
 * wait for then fails: the receiver of a message loses its connection, and a collective ends with an error
 * everywhere. Does not wait. */
void hotlease_comm_request_free(hotlease_comm_request* request);

/* ---- What is reduced, and how --------------------------------------------------------------------- */

/* What the elements of a buffer are, in the byte order of the machine. Buffers need not be aligned to it. */
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
    HOTLEASE_COMM_BOOL = 13,       /* one byte; all but 0 is true */
    HOTLEASE_COMM_BYTES = 14,      /* single bytes that are no numbers */
    HOTLEASE_COMM_I32_INDEX = 15,  /* struct { int32_t value; int32_t index; }, for MINLOC and MAXLOC */
    HOTLEASE_COMM_I64_INDEX = 16,  /* struct { int64_t value; int32_t index; } */
    HOTLEASE_COMM_F32_INDEX = 17,  /* struct { float value; int32_t index; } */
    HOTLEASE_COMM_F64_INDEX = 18   /* struct { double value; int32_t index; } */
};
/* So many bytes, 1 to 4294967295, that stay together: a struct of the program's, which only operators of its
 * own can reduce. */
#define HOTLEASE_COMM_RECORD(size) (((hotlease_comm_datatype)1 << 32) + (hotlease_comm_datatype)(size))

/* The operators that there are. Sums and products of integers are modulo their size; the least and the
 * greatest of floats is NaN if one is. MINLOC and MAXLOC give the lowest index of those where the value is.
 * What there is not, the sum of truth values for instance, is HOTLEASE_INVALID_ARGUMENT. */
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

/* `second[i] = first[i] op second[i]` for `count` elements; must be associative. Both are aligned for their
 * type. Returns 0, or something else to say that it cannot: the collective fails then, with this number in
 * the message. It is called by whichever thread waits, for several collectives perhaps by several threads at
 * once; it must not throw, nor call anything of the communicator. */
typedef int (*hotlease_comm_function)(void* user, const void* first, void* second, size_t count,
                                      hotlease_comm_datatype datatype);
/* Makes an operator of a function. `commutes` is 1 if the order of the operands does not matter, which is
 * faster; with 0 they are in rank order. `release`, unless NULL, is called with `user` once nothing needs it
 * any more: the operator is freed, and the collectives that use it have ended; also if this fails. */
hotlease_status hotlease_comm_operator_create(hotlease_comm_function function, void* user,
                                              void (*release)(void* user), int commutes,
                                              hotlease_comm_operator** made, hotlease_error** error);
/* Takes those that are not to be freed, too. */
void hotlease_comm_operator_free(hotlease_comm_operator* made);

/* ---- Collectives ---------------------------------------------------------------------------------- */

/* As `input` (of scatter and scatterv: as `output`, at the root): what this rank gives is in `output`
 * (`input`) already, where its result, or its block of it, will be. In gather, gatherv and reduce for the
 * root only. Ranks need not agree. */
#define HOTLEASE_COMM_IN_PLACE ((void*)-1)

/* The calls take what MPI's take, with one datatype. Memory of no elements may be NULL, so the output of
 * those who get nothing may. Displacements may be NULL: blocks stand one after the other. */

/* Where in the program this thread is, for errors of checked mode: of the collectives that it calls from here
 * on. Copied; NULL: it is not known. */
void hotlease_comm_at(const char* place);

/* Returns when all members are here. */
hotlease_status hotlease_comm_barrier(const hotlease_comm* comm, hotlease_error** error);
/* Everyone's buffer becomes the root's. */
hotlease_status hotlease_comm_broadcast(const hotlease_comm* comm, void* buffer, size_t count,
                                        hotlease_comm_datatype datatype, uint32_t root, hotlease_error** error);
/* The root's output gets `count` elements of every rank, in rank order. */
hotlease_status hotlease_comm_gather(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                     hotlease_comm_datatype datatype, uint32_t root, hotlease_error** error);
/* The same with `counts[i]` elements of rank i at `displacements[i]`, which only the root needs to know. */
hotlease_status hotlease_comm_gatherv(const hotlease_comm* comm, const void* input, size_t count, void* output,
                                      const size_t* counts, const size_t* displacements,
                                      hotlease_comm_datatype datatype, uint32_t root, hotlease_error** error);
/* Rank i gets block i, of `count` elements, of the root's input. */
hotlease_status hotlease_comm_scatter(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                      hotlease_comm_datatype datatype, uint32_t root, hotlease_error** error);
/* The same with `counts[i]` elements at `displacements[i]`, which only the root needs to know. */
hotlease_status hotlease_comm_scatterv(const hotlease_comm* comm, const void* input, const size_t* counts,
                                       const size_t* displacements, void* output, size_t count,
                                       hotlease_comm_datatype datatype, uint32_t root, hotlease_error** error);
/* Everyone gets `count` elements of every rank, in rank order. */
hotlease_status hotlease_comm_allgather(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                        hotlease_comm_datatype datatype, hotlease_error** error);
/* The same with `counts[i]` elements of rank i, alike at all ranks, at `displacements[i]`. */
hotlease_status hotlease_comm_allgatherv(const hotlease_comm* comm, const void* input, void* output,
                                         const size_t* counts, const size_t* displacements,
                                         hotlease_comm_datatype datatype, hotlease_error** error);
/* The root gets the reduction of all inputs, of `count` elements each. */
hotlease_status hotlease_comm_reduce(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                     hotlease_comm_datatype datatype, const hotlease_comm_operator* op,
                                     uint32_t root, hotlease_error** error);
/* Everyone gets it, the same to the bit. */
hotlease_status hotlease_comm_allreduce(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                        hotlease_comm_datatype datatype, const hotlease_comm_operator* op,
                                        hotlease_error** error);
/* Rank i gets block i of it, of `counts[i]` elements; inputs have all blocks, one after the other. In place
 * `output` has them all, and the result comes at its beginning. */
hotlease_status hotlease_comm_reduce_scatter(const hotlease_comm* comm, const void* input, void* output,
                                             const size_t* counts, hotlease_comm_datatype datatype,
                                             const hotlease_comm_operator* op, hotlease_error** error);
/* The same with `count` elements for every rank. */
hotlease_status hotlease_comm_reduce_scatter_block(const hotlease_comm* comm, const void* input, void* output,
                                                   size_t count, hotlease_comm_datatype datatype,
                                                   const hotlease_comm_operator* op, hotlease_error** error);
/* Each rank gets the reduction of the inputs of the ranks up to its own. */
hotlease_status hotlease_comm_scan(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                   hotlease_comm_datatype datatype, const hotlease_comm_operator* op,
                                   hotlease_error** error);
/* Each rank gets that of the ranks before it; the output of rank 0 is left as it is. */
hotlease_status hotlease_comm_exscan(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                     hotlease_comm_datatype datatype, const hotlease_comm_operator* op,
                                     hotlease_error** error);
/* Block i of everyone's input, of `count` elements, goes to rank i; block j of its output is of rank j. */
hotlease_status hotlease_comm_alltoall(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                       hotlease_comm_datatype datatype, hotlease_error** error);
/* The same with blocks of any length: what rank i sends to j is as long as what j expects of i. In place the
 * sent counts and displacements do not count, and may be NULL. */
hotlease_status hotlease_comm_alltoallv(const hotlease_comm* comm, const void* input, const size_t* sent_counts,
                                        const size_t* sent_displacements, void* output,
                                        const size_t* received_counts, const size_t* received_displacements,
                                        hotlease_comm_datatype datatype, hotlease_error** error);

/* The same, begun and not waited for. Members may wait for them in any order, but begin all collectives in
 * the same one. Whose the memory is until when: convention 12. */
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
