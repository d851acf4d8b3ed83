//! L0: pure state machines of leases, slots and agents; no clocks, no I/O.
