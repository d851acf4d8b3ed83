//! Tests of communicators, whose members are threads of this program, or processes that run it again.

mod any_length;
mod auto;
mod checked;
mod collectives;
mod communicators;
mod faults;
mod group;
mod messages;
mod near;
mod ofi;
mod operations;
mod rendezvous;
mod struck;
mod survivors;
mod typed;
