//! L3: the cluster daemon: registry, placement, ledger.
