//! Clauses of error messages: advice on what to do next, and names that may have been meant.

use hotlease_wire::frame::InvocationStatus;
use hotlease_wire::{Cause, EndReason, RunCertainty};

pub(super) fn did_you_mean(similar: &[String]) -> String {
    match similar {
        [] => "; `hotlease functions` lists what it has".to_owned(),
        [mangled] if mangled.starts_with("_Z") => format!(
            "; it has `{mangled}`, a C++ function: declare it extern \"C\", as the macros of hotlease/function.h do"
        ),
        [one] => format!("; did you mean `{one}`?"),
        several => format!("; did you mean one of `{}`?", several.join("`, `")),
    }
}

pub(super) fn output_text(whose: &str, output: &[u8]) -> String {
    const SHOWN: usize = 512;
    let text = String::from_utf8_lossy(output);
    let text = text.trim_end();
    // Output that is not text is for the program, not for the message.
    if text.is_empty() || text.contains(|c: char| c == '\u{fffd}' || (c.is_control() && !c.is_whitespace())) {
        return String::new();
    }
    let skip = text.chars().count().saturating_sub(SHOWN);
    let tail: String = text.chars().skip(skip).collect();
    format!("; {whose}: {tail}")
}

pub(super) fn advice(ran: RunCertainty) -> &'static str {
    match ran {
        RunCertainty::Yes => "",
        RunCertainty::No => "; it is safe to call again",
        RunCertainty::Unknown => "; call again only if running twice does no harm (declare the function idempotent)",
    }
}

/// Advice after a worker's death. Calling again does not help against a fault of the function itself.
pub(super) fn after_death(cause: &Cause, ran: RunCertainty) -> &'static str {
    const SIGKILL: i32 = 9;
    const SIGTERM: i32 = 15;
    match cause {
        _ if ran == RunCertainty::No => advice(ran),
        Cause::OutputOverrun { .. } => {
            "; offer it a larger output (`output_bytes`, or a larger place for the result), or let it heed the capacity that it is given"
        }
        Cause::Signal { signal, .. } if !matches!(*signal, SIGKILL | SIGTERM) => {
            "; the fault is in the function, which would fail again: correct it"
        }
        Cause::Exit { .. } => "; a function must return, and not end its process",
        Cause::OutOfMemory => "; let it use less memory, or lease with a larger `memory_bytes`",
        _ => advice(ran),
    }
}

pub(super) fn after_lease(reason: EndReason, ran: RunCertainty) -> &'static str {
    match (reason, ran) {
        (EndReason::Released, RunCertainty::No) => "; this invoker was deallocated: allocate another to go on",
        _ => advice(ran),
    }
}

pub(super) fn refused(status: InvocationStatus) -> &'static str {
    match status {
        InvocationStatus::StaleEpoch => "the request belongs to an earlier holder of the slot",
        InvocationStatus::UnknownFunction => "the worker has no function with this index",
        InvocationStatus::BadLength => "a length is over what the channel takes",
        InvocationStatus::UnknownRegion => "a buffer is not registered with the worker",
        InvocationStatus::BadSpan => "a range reaches past its buffer",
        InvocationStatus::BadHeader => "the request is malformed",
        InvocationStatus::Draining | InvocationStatus::Busy => "the worker is draining, or busy",
        InvocationStatus::Withdrawn => "its client has withdrawn it",
        InvocationStatus::InputUnreachable => "it could not read the input over the fabric",
        InvocationStatus::Ok
        | InvocationStatus::FunctionError
        | InvocationStatus::OutputTooLarge
        | InvocationStatus::DeadlineExceeded
        | InvocationStatus::OutputUnreachable => "its status says that the function ran, which no refusal does",
    }
}
