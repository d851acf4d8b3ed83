//! Every limit that both ends of a boundary must agree on, in one place.

pub mod variables;

/// Longest control message (session, control and connection sockets), bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Largest number of file descriptors in one control message.
pub const MESSAGE_FDS_MAX: usize = 4;
/// Longest payload that is sent inside the header's cache line, bytes.
pub const INLINE_BYTES: usize = 32;
/// Largest number of parts of registered buffers that form an input or an output.
pub const PARTS_MAX: usize = 16;
/// Largest number of entries of a ring; a power of two.
pub const RING_DEPTH_MAX: u32 = 4096;
/// Default number of entries of a ring.
pub const RING_DEPTH_DEFAULT: u32 = 64;
/// Default payload size of one ring entry, bytes: header and payload together fill two whole pages, so that the header
/// is in one page with the first bytes of the payload.
pub const ENTRY_BYTES_DEFAULT: u32 = 2 * 4096 - 64;
/// Largest payload of one ring entry, bytes.
pub const ENTRY_BYTES_MAX: u32 = 4 << 20;
/// Largest ring (all entries), bytes.
pub const RING_BYTES_MAX: u64 = 256 << 20;
/// Largest number of registered buffers of one connection.
pub const REGIONS_MAX: u32 = 1024;
/// Largest registered buffer, bytes.
pub const REGION_BYTES_MAX: u64 = 64 << 30;
/// Largest number of channels of one slot.
pub const CHANNELS_PER_SLOT_MAX: usize = 64;
/// Largest number of connections of one worker.
pub const CONNECTIONS_MAX: usize = 64;
/// Largest number of slots of one worker.
pub const SLOTS_MAX: u32 = 1024;
/// Largest number of warm slots that an agent grants on one shared core.
pub const PLACES_PER_CORE_MAX: u32 = 64;
/// Default number of warm slots that an agent grants on one shared core.
pub const PLACES_PER_CORE_DEFAULT: u32 = 4;
/// Largest number of GPUs of one worker.
pub const GPUS_PER_WORKER_MAX: u32 = 64;
/// Largest number of GPUs that one agent offers.
pub const GPUS_PER_AGENT_MAX: u32 = 1024;
/// Largest number of workers of one lease.
pub const WORKERS_MAX: u32 = 1024;
/// Largest function library, bytes.
pub const CODE_BYTES_MAX: u64 = 512 << 20;
/// Largest number of function libraries that one lease may load.
pub const CODES_PER_LEASE_MAX: usize = 64;
/// Largest number of functions of one library.
pub const FUNCTIONS_MAX: usize = 4096;
/// Longest name of a worker's state, bytes.
pub const STATE_NAME_BYTES_MAX: usize = 64;
/// Longest name of a function, bytes.
pub const FUNCTION_NAME_BYTES_MAX: usize = 1024;
/// Longest last output of a dead worker that is kept and sent, bytes.
pub const LAST_OUTPUT_BYTES_MAX: usize = 4096;
/// Largest number of delegations of one lease at a time.
pub const DELEGATIONS_MAX: usize = 64;
/// Largest number of sessions of peers on one delegation.
pub const PEERS_MAX: usize = 64;
/// Largest number of slots of one delegation.
pub const DELEGATED_SLOTS_MAX: usize = 1024;
/// Largest number of connections of one worker, and of channels of one slot, that peers may have. The rest is reserved
/// for the holder.
pub const PEER_CONNECTIONS_MAX: usize = 48;
/// Largest number of functions of one lease whose usage is counted separately; the usage of further functions is
/// counted together.
pub const FUNCTIONS_BILLED_MAX: usize = 64;
/// Longest name of a function on a bill, bytes.
pub const FUNCTION_LABEL_BYTES_MAX: usize = 128;
/// Longest name of a tenant, bytes.
pub const TENANT_BYTES_MAX: usize = 64;
/// Largest number of directories that a lease may declare.
pub const DIRECTORIES_MAX: usize = 16;
/// Largest number of places of object storage that a lease may declare.
pub const STORAGE_MAX: usize = 16;
/// Longest path that a lease declares, bytes.
pub const PATH_BYTES_MAX: usize = 1024;
/// Largest number of environment variables that a lease may give its workers.
pub const VARIABLES_MAX: usize = 256;
/// Largest number of bytes of all environment variables of a lease together.
pub const VARIABLES_BYTES_MAX: usize = 64 * 1024;
/// Longest token of an operator's order, bytes.
pub const ORDER_TOKEN_BYTES_MAX: usize = 128;
/// Largest memory block, bytes: 16 TiB.
pub const MEMORY_BLOCK_BYTES_MAX: u64 = 16 << 40;
/// Longest label of a lease, bytes.
pub const LABEL_BYTES_MAX: usize = 64;
/// Largest seat, bytes: a name, an address and a secret.
pub const SEAT_BYTES_MAX: usize = 1024;
/// Version of the session, control and connection protocols; both ends must have the same.
pub const PROTOCOL_VERSION: u32 = 15;
