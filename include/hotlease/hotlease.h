/*
 * hotlease/hotlease.h: for callers of functions, from C (C11). Link with -lhotlease.
 *
 *     hotlease_code* code = NULL;
 *     hotlease_invoker* invoker = NULL;
 *     hotlease_function* task = NULL;
 *     hotlease_options options = {.struct_size = sizeof options, .slots = 1};
 *
 *     hotlease_code_open("libtask.so", &code, NULL);             // the functions
 *     hotlease_allocate(code, &options, &invoker, NULL);         // lease a worker and load them there
 *     hotlease_function_find(invoker, "task", NULL, &task, NULL);
 *     hotlease_invoke(task, in, in_size, out, sizeof out, &out_size, NULL);
 *     hotlease_deallocate(invoker, NULL, NULL);
 *     hotlease_function_free(task);                              // in any order
 *     hotlease_invoker_free(invoker);
 *     hotlease_code_free(code);
 *
 * (A real program also checks for errors: see examples/00_hello/hello.c. C++: hotlease.hpp. Message passing between
 * functions, or any processes: communicator.h.)
 *
 * Conventions
 *
 *  1. Handles. Every hotlease_X* is opaque. A function puts it into an out-parameter; hotlease_X_free frees it, and
 *     also takes NULL. Handles may be freed in any order: each handle keeps alive the objects that it needs. Exception:
 *     hotlease_wait and hotlease_then free the invocation.
 *  2. Errors. A function that can fail returns a hotlease_status, HOTLEASE_OK (0) for success. If its last argument is
 *     not NULL, a failure also puts a hotlease_error with the details there; free it with hotlease_error_free.
 *     Out-parameters, `*error` included, are written only as described: results after success, the error after failure.
 *  3. Invalid arguments. NULL instead of an object, or a handle that is no longer usable (an ended lease), gives an
 *     error, not a crash. A pointer that is neither NULL nor valid cannot be detected.
 *  4. Threads. Any number of threads may use codes, invokers, functions, models and buffers at once, but only one
 *     thread at a time an invocation or pipeline. Do not free an object while another thread uses it.
 *  5. Memory. Input bytes are copied before a function returns, so they can be reused at once. The exception is
 *     hotlease_buffer: the worker shares it, so do not access the parts named in an invocation until the invocation has
 *     ended.
 *  6. Option structs start with `struct_size`: set it to sizeof of the struct. Any other field may be 0, which means
 *     the default given beside the field. Later versions add fields at the end only.
 *  7. Text is UTF-8 and ends with a zero byte. Text that a handle returns lives as long as the handle.
 *  8. Callbacks run on a thread of the library (but see hotlease_then). They may submit further invocations, but must
 *     return soon, must not wait for an invocation, and must not throw.
 *  9. After fork, the child must not use objects that its parent made, not even free them.
 * 10. The environment variable HOTLEASE_RUNTIME_DIR names the directory of the platform's sockets, as for the
 *     `hotlease` command. Instead, HOTLEASE_MANAGER names a manager on another host. The client's identity there is
 *     named by HOTLEASE_IDENTITY, or by HOTLEASE_KEY_FILE, HOTLEASE_TOKEN_FILE or HOTLEASE_MUNGE=1 together with
 *     HOTLEASE_CA_FILE (docs/identity.md). HOTLEASE_TRANSPORT selects how workers are reached. Options take precedence
 *     over the environment.
 */
#ifndef HOTLEASE_HOTLEASE_H
#define HOTLEASE_HOTLEASE_H

#include <stddef.h>
#include <stdint.h>

#define HOTLEASE_VERSION_MAJOR 0
#define HOTLEASE_VERSION_MINOR 1
#define HOTLEASE_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotlease_code hotlease_code;             /* a function library */
typedef struct hotlease_invoker hotlease_invoker;       /* a lease, and the connection to its workers */
typedef struct hotlease_function hotlease_function;     /* a function on that lease's workers */
typedef struct hotlease_buffer hotlease_buffer;         /* memory that client and workers share */
typedef struct hotlease_invocation hotlease_invocation; /* a call that was submitted */
typedef struct hotlease_pipeline hotlease_pipeline;     /* many small calls in flight on one slot */
typedef struct hotlease_model hotlease_model;           /* cost of calls: to plan with */
typedef struct hotlease_error hotlease_error;           /* details of a failure */

/* ---- Errors --------------------------------------------------------------------------------------- */

/* Kinds of failure, grouped by the object that is permanently affected. */
typedef enum hotlease_status {
    HOTLEASE_OK = 0,

    /* This call only. */
    HOTLEASE_FUNCTION_FAILED = 1,   /* the function ran and returned its own error number */
    HOTLEASE_OUTPUT_TOO_LARGE = 2,  /* the result, or a message, needs more memory; the error says how much */
    HOTLEASE_DEADLINE_EXCEEDED = 3, /* the function did not end within its timeout */
    HOTLEASE_BUSY = 4,              /* hotlease_try_submit: every slot has a full queue; or calls in flight use all
                                       buffers that can be registered with a worker at a time */
    HOTLEASE_INVALID_ARGUMENT = 5,  /* NULL, a size over a limit, a range outside its buffer, ... */
    HOTLEASE_CANCELLED = 6,         /* the program cancelled the operation, or took its memory back (communicator.h) */
    HOTLEASE_OPERATOR_FAILED = 7,   /* an operator of the program failed (communicator.h) */

    /* This function library or name. */
    HOTLEASE_CODE_REJECTED = 20,    /* not a function library, or a worker could not load it */
    HOTLEASE_UNKNOWN_FUNCTION = 21, /* no library of this lease exports that name */

    /* The worker: another worker replaces it. */
    HOTLEASE_WORKER_DIED = 40,     /* crash, exit, out of memory, killed; the message says which */
    HOTLEASE_OUTCOME_UNKNOWN = 41, /* no process is left that could say how the call ended */

    /* The lease. */
    HOTLEASE_LEASE_ENDED = 60, /* released, expired, revoked */
    HOTLEASE_MEMORY_LOST = 61, /* memory of other nodes was taken back, or its node is gone (memory.h) */

    /* The communicator (communicator.h): a member, or an operation of all members. */
    HOTLEASE_MEMBER_LOST = 70,  /* a member has failed: hotlease_error_rank says which, hotlease_error_cause why */
    HOTLEASE_MEMBER_LEFT = 71,  /* a member has finished, and takes part no longer */
    HOTLEASE_OUTCAST = 72,      /* the other members have declared this member failed */
    HOTLEASE_MISMATCH = 73,     /* ranks called a collective with different arguments, or the collective failed at a
                                   rank: no later collective succeeds */
    HOTLEASE_NOT_TOGETHER = 74, /* members are missing at the join, or a rank or the size conflicts */
    HOTLEASE_NOT_READ = 75,     /* this member finished, but a member did not read its messages in time */
    HOTLEASE_FINISHED = 76,     /* this member has finished */

    /* The platform. */
    HOTLEASE_NO_CAPACITY = 80, /* not enough free cores */
    HOTLEASE_REFUSED = 81,     /* the platform refused, for another reason, which the message gives */
    HOTLEASE_UNAVAILABLE = 82, /* manager or agent cannot be reached: is `hotlease up` running? */
    HOTLEASE_PROTOCOL = 83,    /* a peer broke the protocol: another version of hotlease? */
    HOTLEASE_LOCAL = 84,       /* this process lacks something: memory, file descriptors */

    HOTLEASE_INTERNAL = 100 /* a defect of hotlease itself: please report it */
} hotlease_status;

/* Whether the function of a failed call ran. */
typedef enum hotlease_ran {
    HOTLEASE_RAN_NO = 0,     /* it did not start: calling it again is safe */
    HOTLEASE_RAN_YES = 1,    /* it ran to its end */
    HOTLEASE_RAN_UNKNOWN = 2 /* it may have run, in part or to its end */
} hotlease_ran;

/* The functions on errors take NULL, and then return HOTLEASE_OK, HOTLEASE_RAN_NO, 0 or "". */
hotlease_status hotlease_error_status(const hotlease_error* error);
hotlease_ran hotlease_error_ran(const hotlease_error* error);
/* 1 if the time of the failed call is billed, 0 if it is not. */
int hotlease_error_billed(const hotlease_error* error);
/* 1 if the same call may succeed if repeated, without the risk that a function runs twice that must run once. */
int hotlease_error_retryable(const hotlease_error* error);
/* HOTLEASE_FUNCTION_FAILED: the number that the function returned; 0 otherwise. */
int32_t hotlease_error_code(const hotlease_error* error);
/* HOTLEASE_OUTPUT_TOO_LARGE: bytes that the result or the message needs, 0 if unknown; 0 otherwise. */
uint64_t hotlease_error_needed(const hotlease_error* error);
/* Says what failed, where, why, and what to do next. */
const char* hotlease_error_message(const hotlease_error* error);
void hotlease_error_free(hotlease_error* error);

/* Short name of a status, "worker died" for instance; never NULL. */
const char* hotlease_status_name(hotlease_status status);

/* ---- Code ----------------------------------------------------------------------------------------- */

/* Reads a function library, and the list of its functions, without running any of its code. */
hotlease_status hotlease_code_open(const char* path, hotlease_code** code, hotlease_error** error);
/* Reads a function library from memory. The bytes are copied. */
hotlease_status hotlease_code_from_bytes(const void* bytes, size_t size, hotlease_code** code,
                                         hotlease_error** error);
/* Number and names of the exported functions, sorted by name. The name is NULL for an index out of range. */
size_t hotlease_code_function_count(const hotlease_code* code);
const char* hotlease_code_function_name(const hotlease_code* code, size_t index);
void hotlease_code_free(hotlease_code* code);

/* ---- Leases --------------------------------------------------------------------------------------- */

/* Way in which a slot waits for its next invocation. */
typedef enum hotlease_polling {
    HOTLEASE_POLLING_ADAPTIVE = 0, /* polls while recent arrivals make it worthwhile, then sleeps */
    HOTLEASE_POLLING_HOT = 1,      /* polls for the whole hot budget after each invocation */
    HOTLEASE_POLLING_WARM = 2      /* sleeps at once: slowest answers, but no cost while idle */
} hotlease_polling;

/* Way in which the client waits for its results. */
typedef enum hotlease_completion {
    HOTLEASE_COMPLETION_ADAPTIVE = 0, /* spins for up to 100 us, unless other threads want the core, then sleeps */
    HOTLEASE_COMPLETION_SPIN = 1,     /* spins: lowest latency, one core busy */
    HOTLEASE_COMPLETION_SLEEP = 2     /* sleeps at once */
} hotlease_completion;

/* Options of a lease, and of its calls. */
typedef struct hotlease_options {
    size_t struct_size;       /* sizeof(hotlease_options) */
    uint32_t workers;         /* worker processes; 0: 1 */
    uint32_t slots;           /* threads of each worker, each with its own core; 0: 1 */
    uint32_t polling;         /* a hotlease_polling; 0: adaptive */
    uint32_t completion;      /* a hotlease_completion; 0: adaptive */
    uint64_t hot_budget_us;   /* longest time that a slot polls, billed as hot; 0: 1000 */
    uint64_t ttl_ms;          /* the lease expires after this time unless the library renews it; 0: 5000 */
    uint64_t memory_bytes;    /* limit on the memory of each worker and its processes; 0: the node's share */
    uint64_t timeout_us;      /* longest time of an invocation; 0: none */
    uint32_t depth;           /* invocations in flight on one slot, a power of two; 0: 64 */
    uint32_t request_bytes;   /* largest input that is sent in the ring; the library stages larger input; 0: 8128 */
    uint32_t reply_bytes;     /* limit of the output outside of buffers; 0: 8128 */
    int32_t retries;          /* further runs of an idempotent function after a worker's death; 0: 1, -1: none */
    uint32_t no_new_lease;    /* 1: calls fail when the lease has ended; 0: they take a new lease */
    uint32_t shared;          /* 1: the slots of a worker take turns on one core, also with slots of other leases, and
                                 sleep between invocations; 0: each slot has its own core */
    const char* label;        /* shown by `hotlease leases`, at most 64 bytes; NULL: program and process */
    const char* runtime_dir;  /* directory of the platform's sockets; NULL: see convention 10 */
    const char* manager;      /* a manager on another host, https://HOST:PORT; NULL: see convention 10 */
    const char* identity;     /* identity of the client at this manager: a folder of `hotlease identity issue`; NULL:
                                 see convention 10 */
    const char* transport;    /* how workers are reached: "shm", "ofi" for the best provider of libfabric that works, or
                                 a provider, "tcp;ofi_rxm" for instance; "": the default, "shm" on this node and "ofi"
                                 to other nodes; NULL: see convention 10 */
    uint64_t registered_bytes;   /* limit of buffer bytes that are registered with a worker over libfabric; 0: 16 GiB */
    uint32_t registered_buffers; /* limit of buffers registered with a worker at a time; 0: 1024, the maximum. The least
                                    recently used buffers are unregistered, and registered again on their next use */
    uint32_t no_core_wait;       /* on shared cores: 1: HOTLEASE_BUSY once each worker has refused an invocation because
                                    no core was free; 0: the invocation waits, until its deadline */
    uint32_t spread_least;       /* 0: all workers on one agent; else on as many agents as needed, with at least
                                    `spread_least` workers in all (equal to `workers`: all or none) */
    uint32_t direct;             /* 1: asks agents without the manager, if they allow it; 0: asks the manager */
    uint64_t move_within_ms;     /* how long to try to replace a lost lease; 0: 5000; UINT64_MAX: for ever */
    uint64_t patience_ms;        /* how long to wait for the first lease if not enough cores are free; 0: not at all */
    uint32_t gpus;               /* number of GPUs of each worker; functions find the device numbers in the environment
                                    variable HOTLEASE_GPUS; 0: none */
    uint32_t network;            /* 1: functions may use the host's network, if the site grants it to sandboxes; gangs
                                    in sandboxes and clients on other hosts need it; 0: a sandbox has no network */
    const char* sandbox;         /* kind of isolation of functions: "process", "namespace", "container" or "microvm"; ""
                                    or NULL: the site's choice for this tenant */
    const char* mounts;          /* directories of the node that functions see in their sandbox, one per line:
                                    PATH[:INSIDE][:rw], if the site grants them; "" or NULL: none */
    const char* storage;         /* object storage that functions reach, with keys of the lease in their environment,
                                    one place per line: s3://BUCKET[/PREFIX][:ro|:rw], if the site grants them; "" or
                                    NULL: none */
    const char* state;           /* name of the state that functions leave in the lease's only worker and slot: saved
                                    when the lease ends, and restored by the next lease with this state name. The
                                    library declares how (HOTLEASE_STATE_SAVE in function.h); "" or NULL: no state */
    uint32_t no_renewal;         /* 1: the lease ends after ttl_ms, and calls fail then; 0: the library renews it */
    const char* variables;       /* environment variables of the workers, set before `code` is loaded, one per line:
                                    NAME=VALUE; names do not begin with HOTLEASE_; do not put secrets here; "" or NULL:
                                    only the variables that every worker has */
} hotlease_options;

/* Usage of a lease so far, in total. */
typedef struct hotlease_usage {
    size_t struct_size;    /* sizeof(hotlease_usage) */
    uint64_t allocated_ns; /* number of slots times the time for which they were held */
    uint64_t hot_ns;       /* time in which slots polled */
    uint64_t compute_ns;   /* time in functions */
    uint64_t invocations;  /* functions run */
} hotlease_usage;

/* Leases workers and loads `code` into them; `options` may be NULL. Returns when the workers are ready. */
hotlease_status hotlease_allocate(const hotlease_code* code, const hotlease_options* options,
                                  hotlease_invoker** invoker, hotlease_error** error);
/* Ends the lease and its workers; invocations in flight fail with HOTLEASE_LEASE_ENDED. `usage` may be NULL; otherwise
 * set its struct_size before. Free the invoker afterwards. */
hotlease_status hotlease_deallocate(hotlease_invoker* invoker, hotlease_usage* usage,
                                    hotlease_error** error);
/* Returns the number of slots of all workers together; 0 for NULL. */
uint32_t hotlease_invoker_slots(const hotlease_invoker* invoker);
/* Returns how the first worker was reached when the lease was taken: "shm", or a provider of libfabric; never NULL, ""
 * for NULL. */
const char* hotlease_invoker_transport(const hotlease_invoker* invoker);
/* Also ends the lease, if hotlease_deallocate did not. */
void hotlease_invoker_free(hotlease_invoker* invoker);

/* ---- Functions ------------------------------------------------------------------------------------ */

/* Options of a function's calls. */
typedef struct hotlease_function_options {
    size_t struct_size;    /* sizeof(hotlease_function_options) */
    uint64_t timeout_us;   /* longest time of an invocation; 0: timeout_us of hotlease_options */
    uint64_t output_bytes; /* limit of a submitted call's output outside of buffers; 0: reply_bytes */
    int32_t idempotent;    /* whether it may run again if its worker died; 1: yes, -1: no, 0: as its library declares */
    uint32_t reserved;     /* 0 */
} hotlease_function_options;

/* Finds a function by its name; `options` may be NULL. Look it up once and call it often. A function that
 * reaches its timeout is first asked to stop (`cancelled` in function.h), then killed with its worker. */
hotlease_status hotlease_function_find(const hotlease_invoker* invoker, const char* name,
                                       const hotlease_function_options* options,
                                       hotlease_function** function, hotlease_error** error);
/* Returns a separate handle whose calls all run on one slot, from 0 to hotlease_invoker_slots - 1. Calls of other
 * handles run on any idle slot. */
hotlease_status hotlease_function_on_slot(const hotlease_function* function, uint32_t slot,
                                          hotlease_function** on_slot, hotlease_error** error);
/* Returns the `output_bytes` that apply to the function; 0 for NULL. */
size_t hotlease_function_output_bytes(const hotlease_function* function);
void hotlease_function_free(hotlease_function* function);

/* Calls the function and waits for its result: the fast path, without any allocation. `*out_size` is the number of
 * bytes written to `out`; after HOTLEASE_FUNCTION_FAILED these bytes are the function's own message. */
hotlease_status hotlease_invoke(const hotlease_function* function, const void* in, size_t in_size,
                                void* out, size_t out_capacity, size_t* out_size,
                                hotlease_error** error);

/* ---- Futures -------------------------------------------------------------------------------------- */

/* Starts a call. Waits only while every slot has a full queue. */
hotlease_status hotlease_submit(const hotlease_function* function, const void* in, size_t in_size,
                                hotlease_invocation** invocation, hotlease_error** error);
/* Starts a call, or returns HOTLEASE_BUSY instead of waiting. */
hotlease_status hotlease_try_submit(const hotlease_function* function, const void* in, size_t in_size,
                                    hotlease_invocation** invocation, hotlease_error** error);
/* Returns 1 if the call has ended, so that hotlease_wait returns at once; 0 if not. Does not wait. */
int hotlease_is_done(const hotlease_invocation* invocation);
/* Waits until the call has ended, for at most `timeout_us`; returns 1 if it has ended, 0 if not. */
int hotlease_wait_for(hotlease_invocation* invocation, uint64_t timeout_us);
/* Waits until the call has ended, copies its result, and frees the invocation, with any status. */
hotlease_status hotlease_wait(hotlease_invocation* invocation, void* out, size_t out_capacity,
                              size_t* out_size, hotlease_error** error);
/* Discards the result. The function still runs. */
void hotlease_invocation_free(hotlease_invocation* invocation);

/* Receives the result of a call. `out` and `error` belong to the library, and are valid during the callback; `error` is
 * NULL after success. */
typedef void (*hotlease_callback)(void* user, hotlease_status status, const void* out, size_t out_size,
                                  const hotlease_error* error);
/* Delivers the result of a call to a callback, exactly once, and frees the invocation. If the call has ended already,
 * the callback runs during this function, on the calling thread. */
hotlease_status hotlease_then(hotlease_invocation* invocation, hotlease_callback callback, void* user,
                              hotlease_error** error);
/* Starts a call, and delivers its result to a callback: exactly once if HOTLEASE_OK is returned, else never. */
hotlease_status hotlease_submit_then(const hotlease_function* function, const void* in, size_t in_size,
                                     hotlease_callback callback, void* user, hotlease_error** error);

/* ---- Many calls ----------------------------------------------------------------------------------- */

/* One call of a map. */
typedef struct hotlease_item {
    const void* in;
    size_t in_size;
    void* out;
    size_t out_capacity;
    size_t out_size;        /* set by hotlease_map */
    hotlease_status status; /* set by hotlease_map */
} hotlease_item;

/* Calls the function once for each item, on all slots of the lease, and waits for all calls. Returns HOTLEASE_OK if
 * every call succeeded; else the status of the first failed item, with its error. */
hotlease_status hotlease_map(const hotlease_function* function, hotlease_item* items, size_t count,
                             hotlease_error** error);

/* Opens a pipeline: the cheapest way to make many small calls. All calls are sent to one slot, which answers them in
 * order. Push until the pipeline is full, then pop before each push. Inputs have at most `request_bytes` of
 * hotlease_options. */
hotlease_status hotlease_pipeline_open(const hotlease_function* function, hotlease_pipeline** pipeline,
                                       hotlease_error** error);
/* Returns the number of calls whose result was not popped yet; 0 for NULL. */
size_t hotlease_pipeline_size(const hotlease_pipeline* pipeline);
/* Returns 1 if a result must be popped before the next push: at most `depth` (hotlease_options) calls are in flight. */
int hotlease_pipeline_is_full(const hotlease_pipeline* pipeline);
/* Starts a call. HOTLEASE_BUSY: the pipeline is full, or other calls use the slot's entries. */
hotlease_status hotlease_pipeline_push(hotlease_pipeline* pipeline, const void* in, size_t in_size,
                                       hotlease_error** error);
/* Waits for the oldest call and copies its result. A failure concerns only this call; the next pop returns the next
 * result. HOTLEASE_INVALID_ARGUMENT: no call is in flight; check hotlease_pipeline_size. */
hotlease_status hotlease_pipeline_pop(hotlease_pipeline* pipeline, void* out, size_t out_capacity,
                                      size_t* out_size, hotlease_error** error);
/* Discards the results that were not popped. */
void hotlease_pipeline_free(hotlease_pipeline* pipeline);

/* ---- Buffers -------------------------------------------------------------------------------------- */

/* Makes memory that functions read and write in place, so that the size of the data costs nothing; zeroed. Any number of
 * invocations may use one buffer, as input, as output, or both. */
hotlease_status hotlease_buffer_create(const hotlease_invoker* invoker, size_t size_bytes,
                                       hotlease_buffer** buffer, hotlease_error** error);
/* Returns the address of a buffer's first byte, on a page boundary; NULL for NULL. */
void* hotlease_buffer_data(hotlease_buffer* buffer);
size_t hotlease_buffer_size(const hotlease_buffer* buffer);
/* Frees a buffer. Invocations that use it may still be running: its memory is released when they have ended. */
void hotlease_buffer_free(hotlease_buffer* buffer);

/* A range of a buffer. */
typedef struct hotlease_range {
    hotlease_buffer* buffer;
    size_t offset;
    size_t size; /* of an input: its size; of an output: its capacity */
} hotlease_range;

/* Calls the function with its input and output in buffers; `*out_size` is the number of bytes written. */
hotlease_status hotlease_invoke_buffers(const hotlease_function* function, hotlease_range in,
                                        hotlease_range out, size_t* out_size, hotlease_error** error);
/* Starts a call with input and output in buffers. Pass NULL to hotlease_wait as its `out`: the result is in the
 * buffer. */
hotlease_status hotlease_submit_buffers(const hotlease_function* function, hotlease_range in,
                                        hotlease_range out, hotlease_invocation** invocation,
                                        hotlease_error** error);

/* Largest number of parts of an input or an output. */
#define HOTLEASE_PARTS_MAX 16

/* Calls the function with its input and output in several parts of buffers, up to HOTLEASE_PARTS_MAX each. The function
 * sees one input, the parts of `in` one after another, and one output, which fills the parts of `out` one after
 * another; the parts of `out` must not overlap. The worker gathers and scatters: by RMA from another host, and by
 * copying on the same host, where only a single part is used in place. Without parts (0, and NULL), the input is empty,
 * or the output has no capacity. */
hotlease_status hotlease_invoke_parts(const hotlease_function* function, const hotlease_range* in,
                                      size_t in_count, const hotlease_range* out, size_t out_count,
                                      size_t* out_size, hotlease_error** error);

/* Call or start the function with either input or output in a buffer; the bytes of the output or input are copied. */
hotlease_status hotlease_invoke_from_buffer(const hotlease_function* function, hotlease_range in, void* out,
                                            size_t out_capacity, size_t* out_size, hotlease_error** error);
hotlease_status hotlease_invoke_to_buffer(const hotlease_function* function, const void* in, size_t in_size,
                                          hotlease_range out, size_t* out_size, hotlease_error** error);
hotlease_status hotlease_submit_from_buffer(const hotlease_function* function, hotlease_range in,
                                            hotlease_invocation** invocation, hotlease_error** error);
hotlease_status hotlease_submit_to_buffer(const hotlease_function* function, const void* in, size_t in_size,
                                          hotlease_range out, hotlease_invocation** invocation,
                                          hotlease_error** error);

/* ---- How many tasks to send ------------------------------------------------------------------------ */

/* Learns the cost of a function's calls on inputs like `in`, by making 16 to about 400 calls on one slot, for half a
 * second, or longer if 16 calls take longer. So the function must do no harm if it runs more often than its results are
 * needed. Make no other calls on this slot meanwhile. */
hotlease_status hotlease_model_learn(const hotlease_function* function, const void* in, size_t in_size,
                                     hotlease_model** model, hotlease_error** error);

/* Division of a number of equal tasks. */
typedef struct hotlease_plan {
    size_t struct_size;    /* sizeof(hotlease_plan) */
    uint64_t local;        /* tasks to run here: while they run, the results of sent tasks arrive */
    uint64_t remote;       /* tasks to send first */
    uint64_t predicted_ns; /* time until all tasks are done */
} hotlease_plan;

/* Computes how many of `tasks` to run on the caller's core, where a task takes `local_ns`, and how many to send to the
 * slots of the function's lease (or to the function's one slot), so that the caller never waits for results. Takes
 * negligible time; set `plan->struct_size` before. */
hotlease_status hotlease_model_plan(const hotlease_model* model, uint64_t tasks, uint64_t local_ns,
                                    hotlease_plan* plan, hotlease_error** error);
void hotlease_model_free(hotlease_model* model);

/* ---- Version -------------------------------------------------------------------------------------- */

/* Returns the version of the library in use, for instance "0.1.0"; the macros at the top have this header's version. */
const char* hotlease_version(void);

#ifdef __cplusplus
}
#endif

#endif
