//! Trace of a request, from its client to the agent: an id in every line of the logs, in the format of W3C Trace
//! Context (`traceparent: 00-TRACE-SPAN-FLAGS`).

use http::HeaderMap;
use std::fmt;
use std::future::Future;
use tracing::{Instrument, Span};

/// Name of the HTTP header, and of the gRPC metadata.
pub(crate) const TRACEPARENT: &str = "traceparent";

tokio::task_local! {
    static CURRENT: Trace;
}

/// Identifier of a request, from its client or made here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trace {
    id: u128,
    /// Flags of the client, among them whether traces are collected; passed on unchanged.
    flags: u8,
}

impl Trace {
    /// Trace in the headers, or a new one. A malformed header is ignored, as the standard requires.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let given = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
        given.and_then(Self::parse).unwrap_or_else(|| Self {
            id: rand::random::<u128>().max(1),
            flags: 0,
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut part = |length: usize| {
            let part = parts.next()?;
            let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            (part.len() == length && part.bytes().all(hex)).then_some(part)
        };
        let (version, id, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let id = u128::from_str_radix(id, 16).ok().filter(|id| *id != 0)?;
        let is_known = version == "00" && parts.next().is_none();
        // Later versions may add fields, but begin like this version.
        let is_later = version != "00" && version != "ff";
        if !(is_known || is_later) || span.bytes().all(|byte| byte == b'0') {
            return None;
        }
        let flags = u8::from_str_radix(flags, 16).ok()?;
        Some(Self { id, flags })
    }

    /// Trace of the request that the current task carries out.
    pub(crate) fn current() -> Option<Self> {
        CURRENT.try_with(|trace| *trace).ok()
    }

    /// Runs a request: its log lines and its requests to agents carry the trace.
    pub(crate) async fn scope<F: Future>(self, route: &str, work: F) -> F::Output {
        let span = tracing::info_span!("request", trace = %self, route);
        CURRENT.scope(self, work.instrument(span)).await
    }

    /// Makes a request for an agent, marked with the trace if there is one.
    pub(crate) fn mark<T>(trace: Option<Self>, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        if let Some(trace) = trace {
            let span = rand::random::<u64>().max(1);
            let header = format!("00-{trace}-{span:016x}-{:02x}", trace.flags);
            if let Ok(header) = header.parse() {
                request.metadata_mut().insert(TRACEPARENT, header);
            }
        }
        request
    }

    /// Span for work that an earlier request started.
    pub(crate) fn span(trace: Option<Self>) -> Span {
        match trace {
            Some(trace) => tracing::info_span!("request", %trace),
            None => Span::none(),
        }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(header: &str) -> Trace {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, header.parse().expect("a header"));
        Trace::of(&headers)
    }

    #[test]
    fn a_trace_that_is_given_goes_on_and_one_that_is_malformed_does_not() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let given = of(&format!("00-{id}-00f067aa0ba902b7-01"));
        assert_eq!(given.to_string(), id);
        let passed_on = Trace::mark(Some(given), ());
        let header = passed_on.metadata().get(TRACEPARENT).expect("marked");
        let header = header.to_str().expect("text");
        assert!(
            header.starts_with(&format!("00-{id}-")) && header.ends_with("-01"),
            "{header}"
        );
        assert_eq!(of(header).to_string(), id, "what is passed on is well-formed");
        let zero = "0".repeat(32);
        for bad in [
            "",
            "00",
            &format!("00-{zero}-00f067aa0ba902b7-01"),
            &format!("00-{id}-0000000000000000-01"),
            &format!("ff-{id}-00f067aa0ba902b7-01"),
            &format!("00-{id}-00f067aa0ba902b7-01-more"),
            &format!("00-{}-00f067aa0ba902b7-01", id.to_uppercase()),
            &format!("00-{id}-00f067aa0ba902b7"),
            &format!("00-{id}x-00f067aa0ba902b7-01"),
        ] {
            assert_ne!(of(bad).to_string(), id, "{bad:?} was taken");
        }
    }
}
