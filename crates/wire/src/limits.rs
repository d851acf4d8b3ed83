//! Every limit that both ends of a boundary must agree on, in one place.

/// Longest control message (session, control and connection sockets), bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// File descriptors in one control message.
pub const MESSAGE_FDS_MAX: usize = 4;
/// Payload that travels inside the header's cache line, bytes.
pub const INLINE_BYTES: usize = 32;
/// Parts of registered buffers that an input may be, and an output.
pub const PARTS_MAX: usize = 16;
/// Entries of a ring; a power of two.
pub const RING_DEPTH_MAX: u32 = 4096;
/// Entries of a ring unless asked otherwise.
pub const RING_DEPTH_DEFAULT: u32 = 64;
/// Payload bytes of one ring entry unless asked otherwise: with its header two whole pages, so that both
/// stand side by side in one page.
pub const ENTRY_BYTES_DEFAULT: u32 = 2 * 4096 - 64;
/// Payload bytes of one ring entry.
pub const ENTRY_BYTES_MAX: u32 = 4 << 20;
/// Bytes of one ring (all entries).
pub const RING_BYTES_MAX: u64 = 256 << 20;
/// Registered buffers of one connection.
pub const REGIONS_MAX: u32 = 1024;
/// Bytes of one registered buffer.
pub const REGION_BYTES_MAX: u64 = 64 << 30;
/// Channels of one slot.
pub const CHANNELS_PER_SLOT_MAX: usize = 64;
/// Connections of one worker.
pub const CONNECTIONS_MAX: usize = 64;
/// Slots of one worker.
pub const SLOTS_MAX: u32 = 1024;
/// Warm slots that an agent grants on one shared core at most.
pub const PLACES_PER_CORE_MAX: u32 = 64;
/// The same unless its operator says otherwise.
pub const PLACES_PER_CORE_DEFAULT: u32 = 4;
/// GPUs of one worker.
pub const GPUS_PER_WORKER_MAX: u32 = 64;
/// GPUs that one agent offers.
pub const GPUS_PER_AGENT_MAX: u32 = 1024;
/// Workers of one lease.
pub const WORKERS_MAX: u32 = 1024;
/// Bytes of one function library.
pub const CODE_BYTES_MAX: u64 = 512 << 20;
/// Function libraries that one lease may load.
pub const CODES_PER_LEASE_MAX: usize = 64;
/// Functions of one library.
pub const FUNCTIONS_MAX: usize = 4096;
/// Bytes of the name of a worker's state.
pub const STATE_NAME_BYTES_MAX: usize = 64;
/// Bytes of a function's name.
pub const FUNCTION_NAME_BYTES_MAX: usize = 1024;
/// The last output of a dead worker that is kept and sent, bytes.
pub const LAST_OUTPUT_BYTES_MAX: usize = 4096;
/// Delegations of one lease at a time.
pub const DELEGATIONS_MAX: usize = 64;
/// Sessions of peers on one delegation.
pub const PEERS_MAX: usize = 64;
/// Slots of one delegation.
pub const DELEGATED_SLOTS_MAX: usize = 1024;
/// Connections of one worker that peers may have, and channels of one slot: the rest is its holder's.
pub const PEER_CONNECTIONS_MAX: usize = 48;
/// Functions of one lease whose use is counted one by one; that of the others is counted together.
pub const FUNCTIONS_BILLED_MAX: usize = 64;
/// Bytes of a function's name on a bill.
pub const FUNCTION_LABEL_BYTES_MAX: usize = 128;
/// Bytes of a tenant's name.
pub const TENANT_BYTES_MAX: usize = 64;
/// Directories that a lease may declare.
pub const DIRECTORIES_MAX: usize = 16;
/// Places of object storage that a lease may declare.
pub const STORAGE_MAX: usize = 16;
/// Bytes of a path that a lease declares.
pub const PATH_BYTES_MAX: usize = 1024;
/// Bytes of a lease's label.
pub const LABEL_BYTES_MAX: usize = 64;
/// Bytes of a seat: a name, an address and a secret.
pub const SEAT_BYTES_MAX: usize = 1024;
/// Version of the session, control and connection protocols; both ends must have the same.
pub const PROTOCOL_VERSION: u32 = 10;
