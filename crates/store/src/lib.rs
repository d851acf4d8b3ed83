//! L1: durable state behind one trait.
