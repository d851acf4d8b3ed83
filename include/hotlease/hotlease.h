/*
 * hotlease/hotlease.h: for those who CALL functions, from C (C11). Link with -lhotlease.
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
 * (Without the checks that a program has: see examples/00_hello/hello.c. C++: hotlease.hpp. Message passing between
 * functions, or any processes: communicator.h.)
 *
 * Conventions
 *
 *  1. Handles. Every hotlease_X* is opaque, comes from one function that puts it into its out-parameter,
 *     and is given back with hotlease_X_free, which takes NULL too. Handles may be freed in any order:
 *     each keeps alive what it needs. Exception: hotlease_wait and hotlease_then free the
 *     invocation.
 *  2. Errors. A function that can fail returns a hotlease_status, HOTLEASE_OK (0) for success. If its
 *     last argument is not NULL, a failure also makes a hotlease_error there that tells the rest; free
 *     it with hotlease_error_free. Out-parameters, `*error` included, are written only as described:
 *     results after success, the error after failure.
 *  3. NULL where an object is needed, or a handle of the wrong life (an ended lease), gives an error,
 *     not a crash. A pointer that is neither NULL nor valid cannot be detected.
 *  4. Threads. Codes, invokers, functions, models and buffers may be used by any number of threads at once;
 *     an invocation or pipeline by one thread at a time. Nothing may be freed while another thread uses it.
 *  5. Memory. Input bytes are copied before a function returns, so they can be reused at once. The
 *     exception is hotlease_buffer: it is shared with the worker, and the parts named in an invocation
 *     must be left alone until that has ended.
 *  6. Option structs begin with `struct_size`: set it to sizeof of the struct. All other fields may be 0,
 *     which means the default that stands beside them. Later versions add fields at the end only.
 *  7. Text is UTF-8 and ends with a zero byte. Text that a handle returns lives as long as the handle.
 *  8. Callbacks run on a thread of the library (but see hotlease_then). They may submit further
 *     invocations, but must return soon, must not wait for an invocation, and must not throw.
 *  9. After fork, the child must not use what its parent made, not even free it.
 * 10. The environment variable HOTLEASE_RUNTIME_DIR tells where the platform's sockets are, as for the
 *     `hotlease` command; HOTLEASE_MANAGER names a manager on another host instead, and HOTLEASE_IDENTITY
 *     who asks it, or one of HOTLEASE_KEY_FILE, HOTLEASE_TOKEN_FILE and HOTLEASE_MUNGE=1 with HOTLEASE_CA_FILE
 *     (docs/identity.md); HOTLEASE_TRANSPORT says how workers are reached. What the options say goes before the
 *     environment.
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
typedef struct hotlease_invoker hotlease_invoker;       /* a lease, and the way to its workers */
typedef struct hotlease_function hotlease_function;     /* a function on that lease's workers */
typedef struct hotlease_buffer hotlease_buffer;         /* memory that client and workers share */
typedef struct hotlease_invocation hotlease_invocation; /* a call that was submitted */
typedef struct hotlease_pipeline hotlease_pipeline;     /* many small calls in flight on one slot */
typedef struct hotlease_model hotlease_model;           /* what calls cost: to plan with */
typedef struct hotlease_error hotlease_error;           /* why something failed */

/* ---- Errors --------------------------------------------------------------------------------------- */

/* What kind of failure, grouped by what is affected for good. */
typedef enum hotlease_status {
    HOTLEASE_OK = 0,

    /* This call only. */
    HOTLEASE_FUNCTION_FAILED = 1,   /* the function ran and returned an error number of its own */
    HOTLEASE_OUTPUT_TOO_LARGE = 2,  /* the result, or a message, needs more room; the error says how much */
    HOTLEASE_DEADLINE_EXCEEDED = 3, /* the function did not end within its timeout */
    HOTLEASE_BUSY = 4,              /* hotlease_try_submit: every slot has as much as it can queue; or calls in
                                       flight use all buffers that a worker may know at a time */
    HOTLEASE_INVALID_ARGUMENT = 5,  /* NULL, a size over a limit, a range outside its buffer, ... */
    HOTLEASE_CANCELLED = 6,         /* the program cancelled it, or took its memory back (communicator.h) */
    HOTLEASE_OPERATOR_FAILED = 7,   /* an operator of the program's said that it cannot (communicator.h) */

    /* This function library or name. */
    HOTLEASE_CODE_REJECTED = 20,    /* not a function library, or a worker could not load it */
    HOTLEASE_UNKNOWN_FUNCTION = 21, /* no library of this lease exports that name */

    /* The worker: another takes its place. */
    HOTLEASE_WORKER_DIED = 40,     /* crash, exit, out of memory, killed; the message says which */
    HOTLEASE_OUTCOME_UNKNOWN = 41, /* nobody is left who could say how the call ended */

    /* The lease. */
    HOTLEASE_LEASE_ENDED = 60, /* released, expired, revoked */

    /* The communicator (communicator.h): a member, or what all do together. */
    HOTLEASE_MEMBER_LOST = 70,  /* a member has failed: hotlease_error_rank says which, hotlease_error_cause why */
    HOTLEASE_MEMBER_LEFT = 71,  /* a member has finished, and takes no part any more */
    HOTLEASE_OUTCAST = 72,      /* the others hold that this member has failed */
    HOTLEASE_MISMATCH = 73,     /* ranks called a collective differently, or it failed at one: no other one succeeds */
    HOTLEASE_NOT_TOGETHER = 74, /* members are missing at the join, or a rank or the size is another's */
    HOTLEASE_NOT_READ = 75,     /* somebody has not read in time what this member sent before it finished */
    HOTLEASE_FINISHED = 76,     /* this member has finished */

    /* The platform. */
    HOTLEASE_NO_CAPACITY = 80, /* not enough free cores */
    HOTLEASE_REFUSED = 81,     /* for another reason, which the message gives */
    HOTLEASE_UNAVAILABLE = 82, /* manager or agent cannot be reached: is `hotlease up` running? */
    HOTLEASE_PROTOCOL = 83,    /* a peer broke the protocol: another version of hotlease? */
    HOTLEASE_LOCAL = 84,       /* this process lacks something: memory, file descriptors */

    HOTLEASE_INTERNAL = 100 /* a defect of hotlease itself: please report it */
} hotlease_status;

/* Whether the function of a failed call ran. */
typedef enum hotlease_ran {
    HOTLEASE_RAN_NO = 0,     /* it did not start: calling again is safe */
    HOTLEASE_RAN_YES = 1,    /* it ran to its end */
    HOTLEASE_RAN_UNKNOWN = 2 /* it may have run, in part or to its end */
} hotlease_ran;

/* All of these take NULL: HOTLEASE_OK, HOTLEASE_RAN_NO, 0 and "". */
hotlease_status hotlease_error_status(const hotlease_error* error);
hotlease_ran hotlease_error_ran(const hotlease_error* error);
/* 1 if the time of the failed call counts on the lease's bill, 0 if it does not. */
int hotlease_error_billed(const hotlease_error* error);
/* 1 if the same call may succeed if made again, without the risk of running twice what must run once. */
int hotlease_error_retryable(const hotlease_error* error);
/* HOTLEASE_FUNCTION_FAILED: the number that the function returned; 0 otherwise. */
int32_t hotlease_error_code(const hotlease_error* error);
/* HOTLEASE_OUTPUT_TOO_LARGE: how many bytes the result or the message needs, 0 if unknown; 0 otherwise. */
uint64_t hotlease_error_needed(const hotlease_error* error);
/* What failed, where, why, and what to do next. */
const char* hotlease_error_message(const hotlease_error* error);
void hotlease_error_free(hotlease_error* error);

/* A word for a status, "worker died" for instance; never NULL. */
const char* hotlease_status_name(hotlease_status status);

/* ---- Code ----------------------------------------------------------------------------------------- */

/* Reads a function library, and which functions it exports, without running anything of it. */
hotlease_status hotlease_code_open(const char* path, hotlease_code** code, hotlease_error** error);
/* The same from memory. The bytes are copied. */
hotlease_status hotlease_code_from_bytes(const void* bytes, size_t size, hotlease_code** code,
                                         hotlease_error** error);
/* The exported functions, sorted by name. An index that does not exist gives NULL. */
size_t hotlease_code_function_count(const hotlease_code* code);
const char* hotlease_code_function_name(const hotlease_code* code, size_t index);
void hotlease_code_free(hotlease_code* code);

/* ---- Leases --------------------------------------------------------------------------------------- */

/* How a slot waits for its next invocation. */
typedef enum hotlease_polling {
    HOTLEASE_POLLING_ADAPTIVE = 0, /* polls while recent arrivals make it worth while, then sleeps */
    HOTLEASE_POLLING_HOT = 1,      /* polls for the whole hot budget after each invocation */
    HOTLEASE_POLLING_WARM = 2      /* sleeps at once: slowest to answer, and costs nothing idle */
} hotlease_polling;

/* How the client waits for its results. */
typedef enum hotlease_completion {
    HOTLEASE_COMPLETION_ADAPTIVE = 0, /* spins for up to 100 us, then sleeps */
    HOTLEASE_COMPLETION_SPIN = 1,     /* spins: lowest latency, one core busy */
    HOTLEASE_COMPLETION_SLEEP = 2     /* sleeps at once */
} hotlease_completion;

/* What to lease, and how to use it. */
typedef struct hotlease_options {
    size_t struct_size;       /* sizeof(hotlease_options) */
    uint32_t workers;         /* worker processes; 0: 1 */
    uint32_t slots;           /* of each worker: threads with a core of their own; 0: 1 */
    uint32_t polling;         /* a hotlease_polling; 0: adaptive */
    uint32_t completion;      /* a hotlease_completion; 0: adaptive */
    uint64_t hot_budget_us;   /* longest time that a slot polls, billed as hot; 0: 1000 */
    uint64_t ttl_ms;          /* lease expiry unless renewed, which the library does; 0: 5000 */
    uint64_t memory_bytes;    /* address space limit of each worker; 0: none */
    uint64_t timeout_us;      /* longest time of an invocation; 0: none */
    uint32_t depth;           /* invocations in flight on one slot, a power of two; 0: 64 */
    uint32_t request_bytes;   /* input that travels in the ring; larger is staged by the library; 0: 8128 */
    uint32_t reply_bytes;     /* output outside of buffers, at most; 0: 8128 */
    int32_t retries;          /* runs of an idempotent function after a worker's death; 0: 1, -1: none */
    uint32_t no_new_lease;    /* 1: calls fail when the lease has ended; 0: they take a new lease */
    uint32_t shared;          /* 1: the slots of a worker take turns on one core, also with other leases', and sleep
                                 between invocations; 0: each has a core of its own */
    const char* label;        /* shown by `hotlease leases`, at most 64 bytes; NULL: the program's name */
    const char* runtime_dir;  /* where the platform's sockets are; NULL: see convention 10 */
    const char* manager;      /* a manager on another host, https://HOST:PORT; NULL: see convention 10 */
    const char* identity;     /* who asks it: a folder of `hotlease identity issue`; NULL: see convention 10 */
    const char* transport;    /* how workers are reached: "shm", "ofi" for the best provider of libfabric that
                                 gets through, or a provider, "tcp;ofi_rxm" for instance; "": as by default,
                                 "shm" to this machine and "ofi" to others; NULL: see convention 10 */
    uint64_t registered_bytes;   /* of buffers that a worker knows at a time, over libfabric; 0: 16 GiB */
    uint32_t registered_buffers; /* the same as a number, everywhere; 0: 1024, the most. What was not used lately
                                    makes room, and comes back by its next use */
    uint32_t no_core_wait;       /* 1, on shared cores: HOTLEASE_BUSY once each worker has refused an invocation for want
                                    of a core; 0: it waits, until its deadline */
    uint32_t spread_least;       /* 0: all workers on one agent; else over as many agents as needed, at least so many
                                    workers (as many as `workers`: all or nothing) */
    uint32_t direct;             /* 1: agents are asked without the manager, where they let clients; 0: the manager is */
    uint64_t move_within_ms;     /* how long another lease is looked for when one was lost; 0: 5000 */
    uint64_t patience_ms;        /* how long the first lease is waited for where there is no room; 0: not at all */
    uint32_t gpus;               /* of each worker: counted devices; its functions find their numbers in the environment
                                    variable HOTLEASE_GPUS; 0: none */
    uint32_t network;            /* 1: functions may use the host's network, where the site grants it to sandboxes; gangs in
                                    sandboxes need it, and clients on other hosts; 0: in a sandbox there is none */
    const char* sandbox;         /* what functions are isolated by: "process", "namespace", "container" or "microvm";
                                    "" or NULL: what the site has for this tenant */
    const char* mounts;          /* directories of the node that functions see in their sandbox, one per line:
                                    PATH[:INSIDE][:rw], as far as the site grants them; "" or NULL: none */
    const char* storage;         /* object storage that functions reach with keys of the lease's own, which are in their environment, one
                                    place per line: s3://BUCKET[/PREFIX][:ro|:rw], as far as the site grants them; "" or NULL: none */
    const char* state;           /* a name for what functions leave behind in the lease's one worker and slot: saved when it ends, and
                                    restored by the next lease of this name. The library says how (HOTLEASE_STATE_SAVE in function.h);
                                    "" or NULL: nothing is kept */
} hotlease_options;

/* What a lease has used so far, in all. */
typedef struct hotlease_usage {
    size_t struct_size;    /* sizeof(hotlease_usage) */
    uint64_t allocated_ns; /* slots times the time they were held */
    uint64_t hot_ns;       /* time that they polled */
    uint64_t compute_ns;   /* time in functions */
    uint64_t invocations;  /* functions run */
} hotlease_usage;

/* Leases workers and loads `code` into them; `options` may be NULL. Returns when they are ready. */
hotlease_status hotlease_allocate(const hotlease_code* code, const hotlease_options* options,
                                  hotlease_invoker** invoker, hotlease_error** error);
/* Ends the lease and its workers; invocations in flight fail with HOTLEASE_LEASE_ENDED. `usage` may be
 * NULL; otherwise set its struct_size. The invoker remains to be freed. */
hotlease_status hotlease_deallocate(hotlease_invoker* invoker, hotlease_usage* usage,
                                    hotlease_error** error);
/* Slots of all workers together; 0 for NULL. */
uint32_t hotlease_invoker_slots(const hotlease_invoker* invoker);
/* How its first worker was reached when the lease was taken: "shm", or a provider of libfabric; never NULL,
 * "" for NULL. */
const char* hotlease_invoker_transport(const hotlease_invoker* invoker);
/* Also ends the lease, if hotlease_deallocate did not. */
void hotlease_invoker_free(hotlease_invoker* invoker);

/* ---- Functions ------------------------------------------------------------------------------------ */

/* How to call a function. */
typedef struct hotlease_function_options {
    size_t struct_size;    /* sizeof(hotlease_function_options) */
    uint64_t timeout_us;   /* longest time of an invocation; 0: that of hotlease_options */
    uint64_t output_bytes; /* most output of a submitted call, unless in a buffer; 0: reply_bytes */
    int32_t idempotent;    /* may be run again when its worker died; 1: yes, -1: no, 0: as its library says */
    uint32_t reserved;     /* 0 */
} hotlease_function_options;

/* Finds a function by its name; `options` may be NULL. Look it up once and call it often. A function that
 * reaches its timeout is first asked to stop (`cancelled` in function.h), then killed with its worker. */
hotlease_status hotlease_function_find(const hotlease_invoker* invoker, const char* name,
                                       const hotlease_function_options* options,
                                       hotlease_function** function, hotlease_error** error);
/* The same function on one slot only, from 0 to hotlease_invoker_slots - 1: a handle of its own, for all
 * calls. Other handles use whichever slot is idle. */
hotlease_status hotlease_function_on_slot(const hotlease_function* function, uint32_t slot,
                                          hotlease_function** on_slot, hotlease_error** error);
/* The `output_bytes` that apply to it; 0 for NULL. */
size_t hotlease_function_output_bytes(const hotlease_function* function);
void hotlease_function_free(hotlease_function* function);

/* Calls the function and waits for its result: the fast path, without any allocation. `*out_size` is
 * how many bytes of `out` were written; after HOTLEASE_FUNCTION_FAILED too, where it is the function's
 * own message. */
hotlease_status hotlease_invoke(const hotlease_function* function, const void* in, size_t in_size,
                                void* out, size_t out_capacity, size_t* out_size,
                                hotlease_error** error);

/* ---- Futures -------------------------------------------------------------------------------------- */

/* Starts a call. Waits only while every slot has a full queue. */
hotlease_status hotlease_submit(const hotlease_function* function, const void* in, size_t in_size,
                                hotlease_invocation** invocation, hotlease_error** error);
/* The same, but gives HOTLEASE_BUSY instead of waiting. */
hotlease_status hotlease_try_submit(const hotlease_function* function, const void* in, size_t in_size,
                                    hotlease_invocation** invocation, hotlease_error** error);
/* 1 if the call has ended, so that hotlease_wait returns at once; 0 if not. Does not wait. */
int hotlease_is_done(const hotlease_invocation* invocation);
/* Waits until the call has ended, for at most `timeout_us`: 1 if it has ended, 0 if not. */
int hotlease_wait_for(hotlease_invocation* invocation, uint64_t timeout_us);
/* Waits until the call has ended, copies its result, and frees the invocation, whatever is returned. */
hotlease_status hotlease_wait(hotlease_invocation* invocation, void* out, size_t out_capacity,
                              size_t* out_size, hotlease_error** error);
/* Gives up interest in the result. The function runs all the same. */
void hotlease_invocation_free(hotlease_invocation* invocation);

/* Receives the result of a call. `out` and `error` are the library's, and valid during the callback;
 * `error` is NULL after success. */
typedef void (*hotlease_callback)(void* user, hotlease_status status, const void* out, size_t out_size,
                                  const hotlease_error* error);
/* Has the result of a call delivered, exactly once, and frees the invocation. If the call has ended
 * already, this happens here, on the thread that asks. */
hotlease_status hotlease_then(hotlease_invocation* invocation, hotlease_callback callback, void* user,
                              hotlease_error** error);
/* Starts a call and has its result delivered: exactly once if HOTLEASE_OK is returned, else never. */
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

/* Calls the function once for each item, on all slots of the lease, and waits for all. Returns HOTLEASE_OK
 * if every call succeeded; else the status of the first item that did not, with its error. */
hotlease_status hotlease_map(const hotlease_function* function, hotlease_item* items, size_t count,
                             hotlease_error** error);

/* A pipeline: the cheapest way to make many small calls. They go to one slot, which answers them in order;
 * push until it is full, then pop for each push. Inputs have at most `request_bytes` of hotlease_options. */
hotlease_status hotlease_pipeline_open(const hotlease_function* function, hotlease_pipeline** pipeline,
                                       hotlease_error** error);
/* Calls whose result was not popped yet; 0 for NULL. */
size_t hotlease_pipeline_size(const hotlease_pipeline* pipeline);
/* 1 if a result must be popped before the next push; as many calls fit as `depth` of hotlease_options. */
int hotlease_pipeline_is_full(const hotlease_pipeline* pipeline);
/* Starts a call. HOTLEASE_BUSY if it is full, or others have the slot's entries. */
hotlease_status hotlease_pipeline_push(hotlease_pipeline* pipeline, const void* in, size_t in_size,
                                       hotlease_error** error);
/* Waits for the oldest call and copies its result. A failure is that call's; the next pop gives the next
 * result. HOTLEASE_INVALID_ARGUMENT if there is none: ask hotlease_pipeline_size. */
hotlease_status hotlease_pipeline_pop(hotlease_pipeline* pipeline, void* out, size_t out_capacity,
                                      size_t* out_size, hotlease_error** error);
/* Gives up interest in what was not popped. */
void hotlease_pipeline_free(hotlease_pipeline* pipeline);

/* ---- Buffers -------------------------------------------------------------------------------------- */

/* Memory that the function reads and writes in place, so that its size costs nothing; zeroed. One buffer
 * may be used by any number of invocations, as input, as output, or both. */
hotlease_status hotlease_buffer_create(const hotlease_invoker* invoker, size_t size_bytes,
                                       hotlease_buffer** buffer, hotlease_error** error);
/* Its first byte, on a page boundary; NULL for NULL. */
void* hotlease_buffer_data(hotlease_buffer* buffer);
size_t hotlease_buffer_size(const hotlease_buffer* buffer);
/* Invocations that use the buffer may still be running: its memory is kept for them. */
void hotlease_buffer_free(hotlease_buffer* buffer);

/* Bytes of a buffer. */
typedef struct hotlease_range {
    hotlease_buffer* buffer;
    size_t offset;
    size_t size; /* input: its size; output: the capacity */
} hotlease_range;

/* Calls the function with its input and output in buffers; `*out_size` is how many bytes it wrote. */
hotlease_status hotlease_invoke_buffers(const hotlease_function* function, hotlease_range in,
                                        hotlease_range out, size_t* out_size, hotlease_error** error);
/* Starts such a call. hotlease_wait then takes NULL for `out`, because the result is in the buffer. */
hotlease_status hotlease_submit_buffers(const hotlease_function* function, hotlease_range in,
                                        hotlease_range out, hotlease_invocation** invocation,
                                        hotlease_error** error);

/* The most parts that an input or an output can have. */
#define HOTLEASE_PARTS_MAX 16

/* Calls the function with its input and output each in several parts of buffers, up to HOTLEASE_PARTS_MAX. It
 * sees one input, the parts of `in` one behind the other, and one output, which fills the parts of `out` in turn;
 * these must be apart. The worker gathers and scatters: by RMA from another host, by copying on the same one,
 * where only a single part is used in place. No parts (0, and NULL) are an empty input, or no room for any
 * output. */
hotlease_status hotlease_invoke_parts(const hotlease_function* function, const hotlease_range* in,
                                      size_t in_count, const hotlease_range* out, size_t out_count,
                                      size_t* out_size, hotlease_error** error);

/* The same with bytes on one side, which are copied. */
hotlease_status hotlease_invoke_from_buffer(const hotlease_function* function, hotlease_range in, void* out,
                                            size_t out_capacity, size_t* out_size, hotlease_error** error);
hotlease_status hotlease_invoke_to_buffer(const hotlease_function* function, const void* in, size_t in_size,
                                          hotlease_range out, size_t* out_size, hotlease_error** error);
hotlease_status hotlease_submit_from_buffer(const hotlease_function* function, hotlease_range in,
                                            hotlease_invocation** invocation, hotlease_error** error);
hotlease_status hotlease_submit_to_buffer(const hotlease_function* function, const void* in, size_t in_size,
                                          hotlease_range out, hotlease_invocation** invocation,
                                          hotlease_error** error);

/* ---- How many to send ------------------------------------------------------------------------------ */

/* Learns what calls of a function cost, with inputs like this one: by making 16 to some 400 of them on one
 * slot, for half a second or as long as 16 calls take. So the function must be one that may be run more often
 * than its results are wanted. Make no other calls on that slot meanwhile. */
hotlease_status hotlease_model_learn(const hotlease_function* function, const void* in, size_t in_size,
                                     hotlease_model** model, hotlease_error** error);

/* What to do with some tasks that are all alike. */
typedef struct hotlease_plan {
    size_t struct_size;    /* sizeof(hotlease_plan) */
    uint64_t local;        /* tasks to keep: while they run, those that were sent come back */
    uint64_t remote;       /* tasks to send first */
    uint64_t predicted_ns; /* when all are done */
} hotlease_plan;

/* Says how many of `tasks`, each of which takes `local_ns` on the caller's core, to keep and how many to send
 * to the slots of that function's lease (or to its one slot), so that the caller never waits for results.
 * Takes no time to speak of; set `plan->struct_size` before. */
hotlease_status hotlease_model_plan(const hotlease_model* model, uint64_t tasks, uint64_t local_ns,
                                    hotlease_plan* plan, hotlease_error** error);
void hotlease_model_free(hotlease_model* model);

/* ---- Version -------------------------------------------------------------------------------------- */

/* Of the library in use, for instance "0.1.0"; the macros at the top are those of this header. */
const char* hotlease_version(void);

#ifdef __cplusplus
}
#endif

#endif
