//! Level 1 of hotlease: parsing and signing of S3 requests, for a proxy between a function and a store.
//!
//! ```text
//! request ─► Authorization: which keys, valid? ─► S3Request: object, operation ─► checked against the lease's places
//!         ─► headers that are passed on ─► signed with the site's keys
//! ```
//!
//! A forwarded request is written anew from its parsed parts: a store never sees a path, a query or a header that was
//! not checked. Requests that are not in the tables are refused. This crate does no I/O; the agent does
//! (`crates/agent/src/data/storage`).
//!
//! ```
//! use hotlease_s3::S3Request;
//! use http::{HeaderMap, Method};
//! let places = ["s3://results/ann:rw".parse()?];
//! let put = S3Request::read(&Method::PUT, "/results/ann/run%207", &HeaderMap::new())?;
//! assert!(put.check(&places).is_ok());
//! let climbs = S3Request::read(&Method::PUT, "/results/ann/%2e%2e/bob", &HeaderMap::new());
//! assert_eq!(climbs.expect_err("refused").code, "InvalidURI");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod encoding;
mod fault;
mod headers;
mod operations;
mod removal;
mod request;
mod signature;
mod time;

pub use fault::Fault;
pub use headers::{BodyDigest, forward_headers};
pub use operations::S3Operation;
pub use removal::{BODY_BYTES_MAX, parse_removal};
pub use request::{PermittedPlaces, S3Request};
pub use signature::{Authorization, SignedParts, SigningKeys, digest};
pub use time::SignatureTime;
