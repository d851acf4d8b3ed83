//! The C ABI of the client library and of message passing. The contract of each function is in
//! `include/hotlease/hotlease.h`, `memory.h`, `communicator.h` and `gang.h`.
//!
//! * [`status`] — kinds of failure, the error object, and the conversion of panics and `Result`s.
//! * [`argument`] — checks and conversions of arguments from C callers.
//! * [`code`], [`invoker`], [`function`], [`invocation`], [`buffer`], [`pipeline`], [`model`] — one handle each; [`map`],
//!   [`mixed_calls`], [`parts`] — further ways to call.
//! * [`memory`] — memory of other nodes.
//! * [`comm`] — message passing; [`gang`] — functions that run at the same time, and their communicator.
//!
//! Without the feature `platform`, the library has only message passing; without `stores`, it has no links through
//! stores. `cargo build --release -p hotlease-c --no-default-features` builds a library without tokio and the clients
//! of stores. It has the functions of `communicator.h`, and the functions of `hotlease.h` for errors and versions.
//!
//! Every handle is a `Box` that is returned to the caller as a raw pointer, and freed by its `_free` function. The
//! caller's part of each `unsafe` contract is the same, and is stated at the top of the header: pointers are NULL or
//! valid, and an object is not freed while it is in use.

#![allow(clippy::missing_safety_doc)] // The headers state the safety contract; see above.
#![cfg_attr(
    not(feature = "platform"),
    allow(dead_code, reason = "some checks of arguments are for the platform only")
)]

mod argument;
#[cfg(feature = "platform")]
mod buffer;
#[cfg(feature = "platform")]
mod code;
mod comm;
#[cfg(feature = "platform")]
mod function;
#[cfg(feature = "platform")]
mod gang;
#[cfg(feature = "platform")]
mod invocation;
#[cfg(feature = "platform")]
mod invoker;
#[cfg(feature = "platform")]
mod map;
#[cfg(feature = "platform")]
mod memory;
#[cfg(feature = "platform")]
mod mixed_calls;
#[cfg(feature = "platform")]
mod model;
#[cfg(feature = "platform")]
mod parts;
#[cfg(feature = "platform")]
mod pipeline;
mod status;

use std::ffi::c_char;

/// Version of this library.
#[unsafe(no_mangle)]
pub extern "C" fn hotlease_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
