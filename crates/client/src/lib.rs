//! L2: leases, channels, invocations, buffers.
