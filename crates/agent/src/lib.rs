//! L3: the node daemon that owns slots and starts workers.
