/*
 * hotlease/memory.h: memory of other nodes that a program reads and writes, from C (C11). Link with -lhotlease.
 *
 *     hotlease_memory* memory = NULL;
 *
 *     hotlease_memory_allocate(8ull << 30, NULL, &memory, NULL);           // 8 GiB, all zero, no core
 *     hotlease_memory_write(memory, 4096, row, sizeof row, NULL);
 *     hotlease_memory_read(memory, 4096, row, sizeof row, NULL);
 *     hotlease_memory_deallocate(memory, NULL, NULL);                      // also frees the handle
 *
 * (A real program also checks for errors: see docs/memory.md. C++: memory.hpp.)
 *
 * Conventions: the conventions of hotlease.h, and
 *
 * 18. It is idle memory, which its node can take back at any time. Then every call fails with HOTLEASE_MEMORY_LOST, for
 *     good, and the bytes are gone; allocate another.
 * 19. Any number of threads may read and write one memory at once. A copy that overlaps a write in progress may see old
 *     and new bytes mixed. An offset and a size that reach past the end give HOTLEASE_INVALID_ARGUMENT, and change
 *     nothing.
 */
#ifndef HOTLEASE_MEMORY_H
#define HOTLEASE_MEMORY_H

#include <hotlease/hotlease.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotlease_memory hotlease_memory;                   /* memory of one or several nodes */
typedef struct hotlease_memory_transfer hotlease_memory_transfer; /* a copy that was begun */

/* Options of a memory. */
typedef struct hotlease_memory_options {
    size_t struct_size;    /* sizeof(hotlease_memory_options) */
    uint32_t nodes;        /* number of nodes over which it is spread, at most 8; if fewer nodes have room, a node has
                              several shares; 0: 1 */
    uint32_t stripe_bytes; /* bytes that are together on one node, a power of two from 4096 on; 0: 1 MiB */
    const hotlease_options* lease; /* label, ttl_ms, patience_ms, transport, manager, identity, direct; the options of
                                      workers and functions do not matter; NULL: the defaults */
} hotlease_memory_options;

/* Leases `size_bytes` of memory, all zero. `options` may be NULL. Waits until the nodes have reserved it, which takes
 * up to about a second for each GiB. */
hotlease_status hotlease_memory_allocate(uint64_t size_bytes, const hotlease_memory_options* options,
                                         hotlease_memory** memory, hotlease_error** error);
/* Returns the size in bytes; 0 for NULL. */
uint64_t hotlease_memory_size(const hotlease_memory* memory);
/* Returns how the first node's memory is reached: "shm", or a provider of libfabric; never NULL, "" for NULL. */
const char* hotlease_memory_transport(const hotlease_memory* memory);

/* Copies `size` bytes from `offset` on to `bytes`. After a failure `bytes` may hold a part of them. */
hotlease_status hotlease_memory_read(const hotlease_memory* memory, uint64_t offset, void* bytes, size_t size,
                                     hotlease_error** error);
/* Copies `size` bytes to the bytes from `offset` on. The memory has them when this returns. */
hotlease_status hotlease_memory_write(const hotlease_memory* memory, uint64_t offset, const void* bytes, size_t size,
                                      hotlease_error** error);

/* A piece of the memory, and the bytes of this program that are its target or its source. */
typedef struct hotlease_memory_piece {
    uint64_t offset;
    void* bytes; /* not written by hotlease_memory_write_pieces */
    size_t size;
} hotlease_memory_piece;

/* Copy several pieces. If one of them is not inside the memory, nothing is copied. */
hotlease_status hotlease_memory_read_pieces(const hotlease_memory* memory, const hotlease_memory_piece* pieces,
                                            size_t count, hotlease_error** error);
hotlease_status hotlease_memory_write_pieces(const hotlease_memory* memory, const hotlease_memory_piece* pieces,
                                             size_t count, hotlease_error** error);

/* Begin a copy on another thread. `bytes` belongs to the library until hotlease_memory_wait returns, or
 * hotlease_memory_flush if the transfer was freed before. Copies under way at the same time may take effect in any
 * order; at most 64 are under way, and a further one waits for one of them. */
hotlease_status hotlease_memory_begin_read(const hotlease_memory* memory, uint64_t offset, void* bytes, size_t size,
                                           hotlease_memory_transfer** transfer, hotlease_error** error);
hotlease_status hotlease_memory_begin_write(const hotlease_memory* memory, uint64_t offset, const void* bytes,
                                            size_t size, hotlease_memory_transfer** transfer,
                                            hotlease_error** error);
/* Waits until a copy has ended, and frees the transfer, with any status. */
hotlease_status hotlease_memory_wait(hotlease_memory_transfer* transfer, hotlease_error** error);
/* Frees a transfer without waiting; the copy goes on. */
void hotlease_memory_transfer_free(hotlease_memory_transfer* transfer);
/* Waits until no copy is under way. Fails with the first error of a copy whose transfer was freed. */
hotlease_status hotlease_memory_flush(const hotlease_memory* memory, hotlease_error** error);

/* Gives the memory back, waits until it is free, and frees the handle, with any status. Fails while a copy is under
 * way; the memory is then given back at its end. `usage` may be NULL; otherwise set its struct_size before: its
 * allocated_ns is the time for which the memory was held, summed over its nodes. */
hotlease_status hotlease_memory_deallocate(hotlease_memory* memory, hotlease_usage* usage, hotlease_error** error);
/* Also gives the memory back, and frees the handle. */
void hotlease_memory_free(hotlease_memory* memory);

#ifdef __cplusplus
}
#endif

#endif
