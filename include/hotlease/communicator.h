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
 * (Without the checks that a program has: see docs/message-passing-in-c.md. C++: communicator.hpp. Functions on workers
 * that are leased together get their communicator from their context: gang.h.) No platform is needed, only a rendezvous
 * where members find each other: `hotlease comm rendezvous`, or hotlease_comm_rendezvous_start in any program.
 *
 * Conventions: those of hotlease.h, and
 *
 * 11. Collectives (barrier ... alltoallv, split, dup, grow) are called by all members, in the same order, with counts,
 *     types and roots that match. Counts and displacements are in elements, of sends and receives in bytes.
 * 12. Memory is not copied. In a call that waits, the library uses it until the call returns. In one that does not wait
 *     (`i...`), the library uses it until hotlease_comm_test has returned 1, or hotlease_comm_wait,
 *     hotlease_comm_wait_all or hotlease_comm_request_free has returned, with any status: until then input may be read
 *     but not written, and output may be neither read nor written. Counts, displacements and datatypes are copied at
 *     once, and operators kept.
 * 13. Input and output must not overlap. Data that is reduced, exchanged or gathered in place is passed as
 *     HOTLEASE_COMM_IN_PLACE.
 * 14. Any number of threads may use communicators, operators and rendezvous at once; a request, one thread at a time.
 *     Calls of any thread make progress, and so does the library a few times a second.
 * 15. After an error of a member (HOTLEASE_MEMBER_LOST, HOTLEASE_MEMBER_LEFT) messages between others go on; all
 *     remaining members continue together with hotlease_comm_shrink.
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

/* Returns the rank of the member that failed, left, or sent data that does not match; -1 if the error of a communicator
 * is about no member, and for other errors. Takes NULL. */
int64_t hotlease_error_rank(const hotlease_error* error);
/* Returns the cause of HOTLEASE_MEMBER_LOST, HOTLEASE_OUTCAST and HOTLEASE_NOT_TOGETHER, "its connection was closed:
 * its process has ended" for instance; "" otherwise, and for NULL. (The message contains it, too.) */
const char* hotlease_error_cause(const hotlease_error* error);

/* ---- Rendezvous ----------------------------------------------------------------------------------- */

/* Serves members that have this secret, of any number of communicators, on a separate thread, until it is freed.
 * `listen` is an address and port, "0.0.0.0:7072" or "[::]:7072"; port 0 is any free one. The secret has at least 16
 * bytes, which are copied; NULL and 0: that of HOTLEASE_COMM_SECRET, or of the file HOTLEASE_COMM_SECRET_FILE. */
hotlease_status hotlease_comm_rendezvous_start(const char* listen, const void* secret, size_t secret_size,
                                               hotlease_comm_rendezvous** rendezvous, hotlease_error** error);
/* Returns the address on which it listens, "127.0.0.1:40123" for instance; "" for NULL. */
const char* hotlease_comm_rendezvous_address(const hotlease_comm_rendezvous* rendezvous);
/* Stops it. Members that wait there are told; connected members do not need it any more. */
void hotlease_comm_rendezvous_free(hotlease_comm_rendezvous* rendezvous);

/* ---- Communicators -------------------------------------------------------------------------------- */

/* Options of a join. For 0 or NULL the environment applies, where a variable is named, else the default given here.
 * Name, size, secret and rendezvous are the same at all members. */
typedef struct hotlease_comm_options {
    size_t struct_size;        /* sizeof(hotlease_comm_options) */
    const char* name;          /* 1 to 128 bytes; NULL: HOTLEASE_COMM_NAME */
    const char* rendezvous;    /* "host:port"; NULL: HOTLEASE_COMM_RENDEZVOUS */
    const void* secret;        /* at least 16 bytes, which are copied and never shown; NULL: secret_file */
    size_t secret_size;        /* its size */
    const char* secret_file;   /* file with the secret; NULL: HOTLEASE_COMM_SECRET or HOTLEASE_COMM_SECRET_FILE */
    uint32_t size;             /* number of members, up to 2048; 0: HOTLEASE_COMM_SIZE */
    uint32_t has_rank;         /* 1: `rank`; 0: HOTLEASE_COMM_RANK, or any that is free when all have joined */
    uint32_t rank;             /* rank of this member, from 0 */
    uint32_t sealed;           /* 1: messages are encrypted; 0: they are not (identities are proved) */
    uint64_t join_timeout_ms;  /* until every member is connected; 0: 30000 */
    uint64_t failure_bound_ms; /* time within which all others learn of a member's failure, at least 100; 0: 2000 */
    uint64_t linger_ms;        /* how long finishing waits for others to read this member's messages; 0: 30000 */
    int64_t spin_us;           /* time to poll for news before sleeping; 0: 20, -1: no polling. Members that share
                                  processors poll for their share of it, and yield in between */
    uint64_t eager_bytes;      /* longest message that is sent without a request, up to 262144; 0: that limit */
    uint64_t early_bytes;      /* room for large messages that arrive while this member waits in a send; 0: 256 MiB */
    const char* address;       /* at which others reach this member; NULL: the one that reached the rendezvous */
    uint32_t newcomer;         /* 1: joins a communicator that grows to `size` (hotlease_comm_grow); 0: a new one */
    uint32_t checked;          /* 1, at all members: they compare their calls before each collective; if two differ, all
                                  get an error that says which ranks, which call and where (hotlease_comm_at); 0: no
                                  comparison, unless HOTLEASE_COMM_CHECKED is 1 */
    const char* link;          /* link of the members, the same for all: "direct", "tcp", "ofi", "redis://host:6379",
                                  "s3://bucket", "dynamodb://table", "auto:direct,redis://cache:6379" (the model
                                  chooses); NULL: HOTLEASE_COMM_LINK, or direct */
} hotlease_comm_options;

/* Meets the other members at the rendezvous, and connects with all of them; `options` may be NULL: all from the
 * environment. HOTLEASE_NOT_TOGETHER: members are missing after the timeout, or a rank or the size conflicts; the
 * message names them. HOTLEASE_UNAVAILABLE: no rendezvous or store, or a member cannot be reached. HOTLEASE_REFUSED:
 * the secret differs. */
hotlease_status hotlease_comm_join(const hotlease_comm_options* options, hotlease_comm** comm,
                                   hotlease_error** error);
/* 0, 0 and "" for NULL. */
uint32_t hotlease_comm_rank(const hotlease_comm* comm);
uint32_t hotlease_comm_size(const hotlease_comm* comm);
const char* hotlease_comm_name(const hotlease_comm* comm);
/* Returns the link of the members, without credentials: "direct", "redis://cache:6379". If `link` was "auto", the link
 * that was chosen. "" for NULL. */
const char* hotlease_comm_link(const hotlease_comm* comm);

/* `color` of members that join no part. */
#define HOTLEASE_COMM_NONE (-1)
/* Splits this communicator: members with the same `color` form one, ranked by `key` and then by rank here. With
 * HOTLEASE_COMM_NONE, `*part` becomes NULL. Called by all members. */
hotlease_status hotlease_comm_split(const hotlease_comm* comm, int64_t color, int64_t key, hotlease_comm** part,
                                    hotlease_error** error);
/* Makes a communicator of the same members and ranks, with separate messages and collectives. Called by all members. */
hotlease_status hotlease_comm_dup(const hotlease_comm* comm, hotlease_comm** same, hotlease_error** error);
/* Makes a communicator of the remaining members, in the same order, over new connections. All of them call it, in any
 * state of this communicator; a member that does not call it within the join timeout is left out. Needs the
 * rendezvous. */
hotlease_status hotlease_comm_shrink(const hotlease_comm* comm, hotlease_comm** smaller, hotlease_error** error);
/* Makes a communicator of the same members with the same ranks, followed by `joining` new ones, over new connections.
 * New members call hotlease_comm_join with `newcomer`, the same name, and the size that it grows to. Called by all
 * members. Needs the rendezvous. */
hotlease_status hotlease_comm_grow(const hotlease_comm* comm, uint32_t joining, hotlease_comm** larger,
                                   hotlease_error** error);

/* Finishes; frees the communicator, with any status. The last communicator of a member on its connections (split and
 * dup make others on the same ones) waits until everything is sent, and until others have read it or are gone, at most
 * for `linger_ms`. HOTLEASE_NOT_READ: a member has not read everything in time. */
hotlease_status hotlease_comm_finish(hotlease_comm* comm, hotlease_error** error);
/* Finishes like hotlease_comm_finish, without reporting errors. */
void hotlease_comm_free(hotlease_comm* comm);
/* Gives up, like a member that has failed: all others learn it at once, as HOTLEASE_MEMBER_LOST. Frees the
 * communicator. */
void hotlease_comm_abort(hotlease_comm* comm);

/* ---- Messages ------------------------------------------------------------------------------------- */

/* As `source`: any member. As `tag`: any tag. */
#define HOTLEASE_COMM_ANY (-1)

/* A message that was received, or can be. */
typedef struct hotlease_comm_message {
    uint32_t source; /* rank of the sender */
    uint32_t tag;    /* tag of the sender */
    uint64_t size;   /* bytes */
} hotlease_comm_message;

/* Sends, and returns when the memory may be used again: the message is on its way, or was copied. A large message is on
 * its way only when its receiver asks for it, or waits in a send itself: so two members that both send first do not
 * block each other. */
hotlease_status hotlease_comm_send(const hotlease_comm* comm, const void* bytes, size_t size, uint32_t to,
                                   uint32_t tag, hotlease_error** error);
/* Receives the first message with that source and tag; `message` may be NULL. HOTLEASE_OUTPUT_TOO_LARGE: it is longer
 * than `capacity` (hotlease_error_needed), and waits to be received with more room. */
hotlease_status hotlease_comm_recv(const hotlease_comm* comm, void* bytes, size_t capacity, int64_t source,
                                   int64_t tag, hotlease_comm_message* message, hotlease_error** error);
/* Sends and receives at once. */
hotlease_status hotlease_comm_sendrecv(const hotlease_comm* comm, const void* bytes, size_t size, uint32_t to,
                                       uint32_t send_tag, void* into, size_t capacity, int64_t source,
                                       int64_t recv_tag, hotlease_comm_message* message, hotlease_error** error);
/* Waits for a message and describes the one that hotlease_comm_recv would receive. */
hotlease_status hotlease_comm_probe(const hotlease_comm* comm, int64_t source, int64_t tag,
                                    hotlease_comm_message* message, hotlease_error** error);
/* Probes without waiting: `*found` becomes 1 if there is a message, 0 if not. */
hotlease_status hotlease_comm_iprobe(const hotlease_comm* comm, int64_t source, int64_t tag, int* found,
                                     hotlease_comm_message* message, hotlease_error** error);

/* Start to send and to receive. Use of the memory until the end: convention 12. */
hotlease_status hotlease_comm_isend(const hotlease_comm* comm, const void* bytes, size_t size, uint32_t to,
                                    uint32_t tag, hotlease_comm_request** request, hotlease_error** error);
hotlease_status hotlease_comm_irecv(const hotlease_comm* comm, void* bytes, size_t capacity, int64_t source,
                                    int64_t tag, hotlease_comm_request** request, hotlease_error** error);

/* ---- Requests ------------------------------------------------------------------------------------- */

/* Returns 1 if the operation has ended, so that hotlease_comm_wait returns at once; 0 if not. Makes progress; 1 for
 * NULL. */
int hotlease_comm_test(hotlease_comm_request* request);
/* Waits for the end of the operation, and frees the request, with any status. `message`, which may be NULL, describes a
 * received message. */
hotlease_status hotlease_comm_wait(hotlease_comm_request* request, hotlease_comm_message* message,
                                   hotlease_error** error);
/* Waits for all, and frees them: the entries become NULL. Entries that are NULL are skipped. `messages` is NULL, or has
 * as many entries; those of receives are written. Returns the first failure, when all have ended. */
hotlease_status hotlease_comm_wait_all(hotlease_comm_request** requests, size_t count,
                                       hotlease_comm_message* messages, hotlease_error** error);
/* Waits until one of them has ended, and frees none. `*index` is that of the first one, for which hotlease_comm_wait
 * returns at once. Wait for it, and set its entry to NULL, before the next call. Entries that are NULL are skipped; if
 * all are, `*index` is `count`. */
hotlease_status hotlease_comm_wait_any(hotlease_comm_request* const* requests, size_t count, size_t* index,
                                       hotlease_error** error);
/* Cancels the operation if possible: a receive without a matching message, or a send that has not started. Returns 1 if
 * it was cancelled; then hotlease_comm_wait returns HOTLEASE_CANCELLED. 0 if not, and for NULL. */
int hotlease_comm_cancel(hotlease_comm_request* request);
/* Gives the operation up: cancels it if possible, and otherwise takes its memory back in the middle. Then dependent
 * operations of others fail: the receiver of a message loses its connection, and a collective ends with an error at all
 * members. Does not wait. */
void hotlease_comm_request_free(hotlease_comm_request* request);

/* ---- What is reduced, and how --------------------------------------------------------------------- */

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
    HOTLEASE_COMM_BOOL = 13,       /* one byte; 0 is false, all else true */
    HOTLEASE_COMM_BYTES = 14,      /* single bytes that are not numbers */
    HOTLEASE_COMM_I32_INDEX = 15,  /* struct { int32_t value; int32_t index; }, for MINLOC and MAXLOC */
    HOTLEASE_COMM_I64_INDEX = 16,  /* struct { int64_t value; int32_t index; } */
    HOTLEASE_COMM_F32_INDEX = 17,  /* struct { float value; int32_t index; } */
    HOTLEASE_COMM_F64_INDEX = 18   /* struct { double value; int32_t index; } */
};
/* A record of 1 to 4294967295 bytes that stay together: a struct of the program, which only user-defined operators can
 * reduce. */
#define HOTLEASE_COMM_RECORD(size) (((hotlease_comm_datatype)1 << 32) + (hotlease_comm_datatype)(size))

/* The built-in operators. Sums and products of integers are modulo their size; the minimum and maximum of floats is NaN
 * if one operand is. MINLOC and MAXLOC return the lowest index that has the value. A combination that does not exist,
 * such as the sum of truth values, is HOTLEASE_INVALID_ARGUMENT. */
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

/* Computes `second[i] = first[i] op second[i]` for `count` elements; must be associative. Both are aligned for their
 * type. Returns 0, or another number for a failure: the collective then fails, with this number in the message. Any
 * thread that waits may call it, for several collectives also several threads at once; it must not throw, nor call
 * anything of the communicator. */
typedef int (*hotlease_comm_function)(void* user, const void* first, void* second, size_t count,
                                      hotlease_comm_datatype datatype);
/* Makes an operator of a function. `commutes` is 1 if the order of the operands does not matter, which is faster; with
 * 0 they are in rank order. `release`, unless NULL, is called with `user` once nothing needs it any more: when the
 * operator was freed and its collectives have ended, or when this call fails. */
hotlease_status hotlease_comm_operator_create(hotlease_comm_function function, void* user,
                                              void (*release)(void* user), int commutes,
                                              hotlease_comm_operator** made, hotlease_error** error);
/* Frees an operator; ignores the built-in ones. */
void hotlease_comm_operator_free(hotlease_comm_operator* made);

/* ---- Collectives ---------------------------------------------------------------------------------- */

/* As `input` (of scatter and scatterv: as `output`, at the root): this rank's contribution is already in `output`
 * (`input`), where its result, or its block of it, will be. In gather, gatherv and reduce at the root only. Ranks need
 * not agree. */
#define HOTLEASE_COMM_IN_PLACE ((void*)-1)

/* The calls take the arguments of MPI's, with one datatype. Memory without elements may be NULL, for instance the
 * output of ranks that get nothing. Displacements may be NULL: blocks follow one another. */

/* Sets the source location of this thread, for errors of checked mode in the collectives that it calls from now on.
 * Copied; NULL: unknown. */
void hotlease_comm_at(const char* place);

/* Returns when all members have called it. */
hotlease_status hotlease_comm_barrier(const hotlease_comm* comm, hotlease_error** error);
/* Copies the root's buffer to all members. */
hotlease_status hotlease_comm_broadcast(const hotlease_comm* comm, void* buffer, size_t count,
                                        hotlease_comm_datatype datatype, uint32_t root, hotlease_error** error);
/* Collects `count` elements of each rank in the root's output, in rank order. */
hotlease_status hotlease_comm_gather(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                     hotlease_comm_datatype datatype, uint32_t root, hotlease_error** error);
/* As hotlease_comm_gather, with `counts[i]` elements of rank i at `displacements[i]`, which matter at the root only. */
hotlease_status hotlease_comm_gatherv(const hotlease_comm* comm, const void* input, size_t count, void* output,
                                      const size_t* counts, const size_t* displacements,
                                      hotlease_comm_datatype datatype, uint32_t root, hotlease_error** error);
/* Sends block i, of `count` elements, of the root's input to rank i. */
hotlease_status hotlease_comm_scatter(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                      hotlease_comm_datatype datatype, uint32_t root, hotlease_error** error);
/* As hotlease_comm_scatter, with `counts[i]` elements at `displacements[i]`, which matter at the root only. */
hotlease_status hotlease_comm_scatterv(const hotlease_comm* comm, const void* input, const size_t* counts,
                                       const size_t* displacements, void* output, size_t count,
                                       hotlease_comm_datatype datatype, uint32_t root, hotlease_error** error);
/* Collects `count` elements of each rank at all ranks, in rank order. */
hotlease_status hotlease_comm_allgather(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                        hotlease_comm_datatype datatype, hotlease_error** error);
/* As hotlease_comm_allgather, with `counts[i]` elements of rank i, equal at all ranks, at `displacements[i]`. */
hotlease_status hotlease_comm_allgatherv(const hotlease_comm* comm, const void* input, void* output,
                                         const size_t* counts, const size_t* displacements,
                                         hotlease_comm_datatype datatype, hotlease_error** error);
/* Reduces all inputs, of `count` elements each, to the root. */
hotlease_status hotlease_comm_reduce(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                     hotlease_comm_datatype datatype, const hotlease_comm_operator* op,
                                     uint32_t root, hotlease_error** error);
/* Reduces all inputs; all ranks get the result, equal to the bit. */
hotlease_status hotlease_comm_allreduce(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                        hotlease_comm_datatype datatype, const hotlease_comm_operator* op,
                                        hotlease_error** error);
/* Reduces all inputs; rank i gets block i of the result, of `counts[i]` elements. Inputs have all blocks, one after the
 * other. In place, `output` holds all blocks first, and the result at its beginning afterwards. */
hotlease_status hotlease_comm_reduce_scatter(const hotlease_comm* comm, const void* input, void* output,
                                             const size_t* counts, hotlease_comm_datatype datatype,
                                             const hotlease_comm_operator* op, hotlease_error** error);
/* As hotlease_comm_reduce_scatter, with `count` elements for each rank. */
hotlease_status hotlease_comm_reduce_scatter_block(const hotlease_comm* comm, const void* input, void* output,
                                                   size_t count, hotlease_comm_datatype datatype,
                                                   const hotlease_comm_operator* op, hotlease_error** error);
/* Reduces, for each rank, the inputs of the ranks up to this one. */
hotlease_status hotlease_comm_scan(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                   hotlease_comm_datatype datatype, const hotlease_comm_operator* op,
                                   hotlease_error** error);
/* Reduces, for each rank, the inputs of the ranks before it; leaves the output of rank 0 as it is. */
hotlease_status hotlease_comm_exscan(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                     hotlease_comm_datatype datatype, const hotlease_comm_operator* op,
                                     hotlease_error** error);
/* Sends block i of each rank's input, of `count` elements, to rank i; block j of the output is from rank j. */
hotlease_status hotlease_comm_alltoall(const hotlease_comm* comm, const void* input, void* output, size_t count,
                                       hotlease_comm_datatype datatype, hotlease_error** error);
/* As hotlease_comm_alltoall, with blocks of any length: the block that rank i sends to j is as long as j expects from
 * i. In place, the sent counts and displacements are ignored, and may be NULL. */
hotlease_status hotlease_comm_alltoallv(const hotlease_comm* comm, const void* input, const size_t* sent_counts,
                                        const size_t* sent_displacements, void* output,
                                        const size_t* received_counts, const size_t* received_displacements,
                                        hotlease_comm_datatype datatype, hotlease_error** error);

/* Start the collectives above without waiting. Members may wait for them in any order, but start all collectives in the
 * same order. Use of the memory until the end: convention 12. */
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
